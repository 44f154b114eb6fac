"""What a member is started with. A member needs its spec and the store, nothing else."""

from typing import ClassVar, Literal

from zooid.core.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.profile import Profile
from zooid.core.records import FileRecord, Record, require
from zooid.core.stage import StageTimes, Tie

LinkEnd = Literal["store", "peers"]
"""What a link leads to: the object store, or other members."""


class RunClaim(FileRecord, frozen=True, kw_only=True, tag="run"):
    """Written create-only before anything else: whoever writes it owns the folder, until somebody else goes on."""

    VERSION: ClassVar[int] = 2

    version: int = 2
    run: str
    job_file: str = ""
    """Full path of the job file; empty where it is not known."""
    checkpoints: CheckpointRule = DEFAULT_RULE
    nonce: str = ""
    """Drawn by the writer, so that two who write the same claim are told apart."""


class MemberSpec(FileRecord, frozen=True, kw_only=True):
    """Common to every program that a platform can start."""

    run: str
    member: str
    store: str
    """URL of the run's folder in the object store; credentials come from the member's environment."""
    num_threads: int


class JobSpec(MemberSpec, frozen=True, kw_only=True):
    """Common to those that work on a job."""

    job_file: str


class ProfilerSpec(JobSpec, frozen=True, kw_only=True, tag="profiler_spec"):
    """For `python -m zooid.profiler`: check the job, measure its layers and the store, write the profile."""

    site: str
    """Where it runs: one end of the links it measures."""
    num_neighbours: int
    """How many other members will share the machine's cores; layers are then also measured in such company."""
    memory_bytes: int
    """What a member may use; larger grains are not measured."""
    device: str = "auto"
    """`cpu` or `cuda`; `auto` takes a GPU where there is one."""
    known: Profile | None = None
    """An earlier profile, which is returned as it is where nothing has changed since."""


class ProbeMember(Record, frozen=True, kw_only=True):
    """One of the members that probe together."""

    name: str
    site: str
    """Where it runs: one end of the links it measures."""


class ProbeSpec(MemberSpec, frozen=True, kw_only=True, tag="probe_spec"):
    """For `python -m zooid.profiler`, too: measure links together with the other members; the first writes them."""

    members: tuple[ProbeMember, ...]
    """Everybody, in the order of their ranks."""
    ends: tuple[LinkEnd, ...]
    """What to measure links to."""
    num_streams: tuple[int, ...]
    """Streams, or objects in flight, to measure bandwidth with."""
    num_repeats: int
    seconds: float
    """How long bytes are counted in one measurement of bandwidth."""
    timeout_s: float
    """A member that is not heard of for this long is taken for lost."""

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        require(self.member in names, f"`member` is {self.member}; `members` has {', '.join(names)}")
        require(len(set(names)) == len(names), f"`members` has a name twice: {', '.join(names)}")
        require(bool(self.ends), "`ends` is empty; give store, peers or both")
        require(
            bool(self.num_streams) and min(self.num_streams) >= 1, f"`num_streams` is {self.num_streams}; give some"
        )
        require(self.num_repeats >= 1, f"`num_repeats` is {self.num_repeats}; it must be at least 1")
        require(self.seconds > 0 and self.timeout_s > 0, "`seconds` and `timeout_s` must be above 0")

    @property
    def rank(self) -> int:
        return next(rank for rank, member in enumerate(self.members) if member.name == self.member)


class WorkerSpec(JobSpec, frozen=True, kw_only=True, tag="worker_spec"):
    """For `python -m zooid.worker`."""

    task: Literal["prepare", "check", "train"]
    """`prepare` checks the job against the plan and writes checkpoint 0, `check` checks it against the last checkpoint;
    `train` takes a seat in the roster."""
    roster: int
    timeout_s: float
    """A peer that delivers nothing for this long is taken for lost."""
    checkpoints: CheckpointRule = DEFAULT_RULE


class RehearsalSpec(MemberSpec, frozen=True, kw_only=True, tag="rehearsal_spec"):
    """For `python -m zooid.worker`, too: run steps of a plan while compute sleeps its profiled time."""

    roster: int = 0
    stages: tuple[StageTimes, ...]
    """What every stage takes."""
    ties: tuple[Tie, ...] = ()
    num_steps: int
    timeout_s: float


class Failure(FileRecord, frozen=True, kw_only=True, tag="failure"):
    """The last words of a member, so that whoever started it can tell the user."""

    member: str
    error: str
    """Class of the error."""
    message: str
    traceback: str
    is_input_error: bool
    """The user's input was refused: the message alone explains it."""
    is_consequence: bool
    """The member failed only because a peer went away; the peer's own failure is the cause."""
