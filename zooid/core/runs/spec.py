"""What a member is started with. A member needs its spec and the store, nothing else."""

from typing import ClassVar, Literal

from zooid.core.plans.all_reduce_samples import ELEMENT_BYTES, Library
from zooid.core.plans.plan import FixedLayout
from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.records import FileRecord, Record, require, require_name
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule

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

    def __post_init__(self) -> None:
        require_name("run", self.run)


class Adoption(FileRecord, frozen=True, kw_only=True, tag="adoption"):
    """A claim on members that train already. It replaces their coordinator, but not them.

    It has the next number of the claims, and is written create-only as they are.
    """

    run: str
    roster: int
    """Number of the claim under which the members were started."""
    nonce: str
    """Drawn by the writer, so that two who adopt the same members are told apart."""

    def __post_init__(self) -> None:
        require_name("run", self.run)


class MemberHandle(FileRecord, frozen=True, kw_only=True, tag="member_handle"):
    """How a coordinator that did not start a member can find it. Written when the member is started."""

    member: str
    started_at_s: float
    """Unix time on the clock of the coordinator that started it."""
    place: dict[str, str]
    """What its platform needs to find it; only the platform reads this."""

    def __post_init__(self) -> None:
        require_name("member", self.member)


class MemberSpec(FileRecord, frozen=True, kw_only=True):
    """Common to every program that a platform can start."""

    run: str
    member: str
    store: str
    """URL of the run's folder in the object store; credentials come from the member's environment."""
    num_threads: int
    roster: int = 0
    """Number of the roster, and of the claim, under which it works; 0 where it does not belong to a run."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_name("member", self.member)


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


class TogetherSpec(MemberSpec, frozen=True, kw_only=True):
    """Common to members that measure together; the first of them writes what came out."""

    members: tuple[ProbeMember, ...]
    """Everybody, in the order of their ranks."""
    num_repeats: int
    timeout_s: float
    """A member that is not heard of for this long is taken for lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [member.name for member in self.members]
        require(self.member in names, f"`member` is {self.member}; `members` has {', '.join(names)}")
        require(len(set(names)) == len(names), f"`members` has a name twice: {', '.join(names)}")
        require(self.num_repeats >= 1, f"`num_repeats` is {self.num_repeats}; it must be at least 1")
        require(self.timeout_s > 0, "`timeout_s` must be above 0")

    @property
    def rank(self) -> int:
        return next(rank for rank, member in enumerate(self.members) if member.name == self.member)


class ProbeSpec(TogetherSpec, frozen=True, kw_only=True, tag="probe_spec"):
    """For `python -m zooid.profiler`, too: measure links together with the other members."""

    ends: tuple[LinkEnd, ...]
    """What to measure links to."""
    num_streams: tuple[int, ...]
    """Streams, or objects in flight, to measure bandwidth with."""
    seconds: float
    """How long bytes are counted in one measurement of bandwidth."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.ends), "`ends` is empty; give store, peers or both")
        require(
            bool(self.num_streams) and min(self.num_streams) >= 1, f"`num_streams` is {self.num_streams}; give some"
        )
        require(self.seconds > 0, "`seconds` must be above 0")


class SweepSpec(TogetherSpec, frozen=True, kw_only=True, tag="sweep_spec"):
    """For `python -m zooid.profiler`, too: time a library's all-reduces together with the other members."""

    library: Library
    offer: str
    """What they run on, for the samples."""
    num_bytes: tuple[int, ...]
    num_members: tuple[int, ...]
    """How many of the members take part, the first ones each time."""
    concurrency: tuple[int, ...]
    """How many all-reduces are under way at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(self.members)
        require(
            bool(self.num_bytes) and all(size > 0 and size % ELEMENT_BYTES == 0 for size in self.num_bytes),
            f"`num_bytes` is {self.num_bytes}; give multiples of {ELEMENT_BYTES}",
        )
        require(
            bool(self.num_members) and all(2 <= number <= most for number in self.num_members),
            f"`num_members` is {self.num_members}; give numbers from 2 to {most}",
        )
        require(
            bool(self.concurrency) and min(self.concurrency) >= 1, f"`concurrency` is {self.concurrency}; give some"
        )


class WorkerSpec(JobSpec, frozen=True, kw_only=True, tag="worker_spec"):
    """For `python -m zooid.worker`."""

    task: Literal["prepare", "check", "train"]
    """`prepare` checks the job against the plan and writes checkpoint 0, `check` checks it against the last checkpoint;
    `train` takes a seat in the roster."""
    timeout_s: float
    """A peer that delivers nothing for this long is taken for lost."""
    checkpoints: CheckpointRule = DEFAULT_RULE
    trace: str = ""
    """Digest of the model's trace, for members that train; empty where they have to trace the model themselves."""
    layout: FixedLayout | None = None
    """For `prepare`: what to make the plan from; None where there is one."""


class RehearsalSpec(MemberSpec, frozen=True, kw_only=True, tag="rehearsal_spec"):
    """For `python -m zooid.worker`, too: run steps of a plan while compute sleeps its profiled time."""

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
    user_frames: str = ""
    """The part of the traceback that is in the user's own files."""
    is_input_error: bool
    """The user's input was refused: the message alone explains it."""
    is_consequence: bool
    """The member failed only because a peer went away; the peer's own failure is the cause."""
