"""Specs with which members are started. A member needs its spec and the store, nothing else."""

from typing import ClassVar, Literal

from zooid.core.plans.all_reduce_samples import ELEMENT_BYTES, Library
from zooid.core.plans.plan import FixedLayout
from zooid.core.plans.profile import Profile
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.records import FileRecord, Record, require, require_at_least, require_name, require_positive
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule

LinkEnd = Literal["store", "peers"]
"""The other end of a probed link: the object store, or other members."""


class RunClaim(FileRecord, frozen=True, kw_only=True, tag="run"):
    """A claim on a run's folder, written create-only before anything else. The newest claim owns the folder."""

    VERSION: ClassVar[int] = 2

    version: int = 2
    run: str
    job_file: str = ""
    """Full path of the job file on the coordinator's machine; empty if it is unknown."""
    code: str = ""
    """Digest of the archive of the job's code; empty if members of the coordinator's machine alone train."""
    code_file: str = ""
    """Path of the job file in the archive."""
    checkpoints: CheckpointRule = DEFAULT_RULE
    nonce: str = ""
    """Random text of the writer, which distinguishes two writers of the same claim."""
    deadline_at_s: float | None = None
    """Unix time at which the run must have ended; None if it may take any time."""
    budget_usd: float | None = None
    """Largest cost of the whole run, from its first claim on; None if it may cost anything."""

    @property
    def has_limits(self) -> bool:
        """Whether time or cost of the run is limited."""
        return self.deadline_at_s is not None or self.budget_usd is not None

    def __post_init__(self) -> None:
        require_name("run", self.run)


class Adoption(FileRecord, frozen=True, kw_only=True, tag="adoption"):
    """A claim on members that already train. It replaces their coordinator, but not them.

    It takes the next claim number, and is written create-only like other claims.
    """

    run: str
    roster: int
    """Number of the claim under which the members were started."""
    nonce: str
    """Random text of the writer, which distinguishes two coordinators that adopt the same members."""

    def __post_init__(self) -> None:
        require_name("run", self.run)


class MemberSpec(FileRecord, frozen=True, kw_only=True):
    """Fields that every program needs which a platform can start."""

    run: str
    member: str
    store: str
    """URL of the run's folder in the object store; credentials come from the member's environment."""
    num_threads: int
    roster: int = 0
    """Number of the roster and claim under which it works; 0 if it does not belong to a run."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_name("member", self.member)


class JobSpec(MemberSpec, frozen=True, kw_only=True):
    """Fields that every program needs which works on a job."""

    job_file: str
    """Path of the job file: of this machine, or in the archive of its code."""
    code: str = ""
    """Digest of the archive of the job's code; empty if the job file lies on this machine."""


class ProfilerSpec(JobSpec, frozen=True, kw_only=True, tag="profiler_spec"):
    """For `python -m zooid.profiler`: check the job, measure its layers and the store, write the profile."""

    site: str
    """Site of the member: one end of the links that it measures."""
    num_neighbours: int
    """Number of other members that will share the machine's cores; layers are also measured under such load."""
    memory_bytes: int
    """Memory that a member may use; larger grains are not measured."""
    device: str = "auto"
    """`cpu` or `cuda`; `auto` takes a GPU if there is one."""
    known: Profile | None = None
    """An earlier profile, which is returned unchanged if nothing has changed since."""


class WarmUpSpec(MemberSpec, frozen=True, kw_only=True, tag="warm_up_spec"):
    """For `python -m zooid.worker`: end at once. The platform keeps the process that has forked it, with torch."""


class ProbeMember(Record, frozen=True, kw_only=True):
    """One of the members that probe together."""

    name: str
    site: str
    """Site of the member: one end of the links that it measures."""


class TogetherSpec(MemberSpec, frozen=True, kw_only=True):
    """Fields of members that measure together; the first of them writes the result."""

    members: tuple[ProbeMember, ...]
    """All members in rank order."""
    num_repeats: int
    timeout_s: float
    """Time of silence after which a member counts as lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [member.name for member in self.members]
        require(self.member in names, f"`member` is {self.member}; `members` has {', '.join(names)}")
        require(len(set(names)) == len(names), f"`members` has a name twice: {', '.join(names)}")
        require_at_least(1, self, "num_repeats")
        require_positive(self, "timeout_s")

    @property
    def rank(self) -> int:
        return next(rank for rank, member in enumerate(self.members) if member.name == self.member)


def _require_numbers(field: str, numbers: tuple[int, ...], minimum: int, maximum: int | None = None) -> None:
    require(
        bool(numbers) and min(numbers) >= minimum and (maximum is None or max(numbers) <= maximum),
        f"`{field}` is {numbers}; give numbers "
        + (f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"),
    )


class ProbeSpec(TogetherSpec, frozen=True, kw_only=True, tag="probe_spec"):
    """For `python -m zooid.profiler`: measure links together with the other members."""

    ends: tuple[LinkEnd, ...]
    """The ends to which links are measured."""
    num_streams: tuple[int, ...]
    """Numbers of streams, or of objects in flight, with which bandwidth is measured."""
    seconds: float
    """Duration of one bandwidth measurement."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.ends), "`ends` is empty; give store, peers or both")
        _require_numbers("num_streams", self.num_streams, 1)
        require_positive(self, "seconds")


class SweepSpec(TogetherSpec, frozen=True, kw_only=True, tag="sweep_spec"):
    """For `python -m zooid.profiler`: time a library's all-reduces together with the other members."""

    library: Library
    offer: str
    """Offer on which the members run, for the samples."""
    num_bytes: tuple[int, ...]
    num_members: tuple[int, ...]
    """Numbers of members that take part, always the first ones."""
    concurrency: tuple[int, ...]
    """Numbers of all-reduces in flight at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        max_members = len(self.members)
        require(
            bool(self.num_bytes) and all(size > 0 and size % ELEMENT_BYTES == 0 for size in self.num_bytes),
            f"`num_bytes` is {self.num_bytes}; give multiples of {ELEMENT_BYTES}",
        )
        _require_numbers("num_members", self.num_members, 2, max_members)
        _require_numbers("concurrency", self.concurrency, 1)


class WorkerSpec(JobSpec, frozen=True, kw_only=True, tag="worker_spec"):
    """For `python -m zooid.worker`."""

    task: Literal["prepare", "check", "plan", "train"]
    """`prepare` checks the job against the plan and writes checkpoint 0. `check` compares the job with the last
    checkpoint. `plan` makes a plan in another layout. `train` takes a seat in the roster."""
    timeout_s: float
    """Time of silence after which a peer counts as lost."""
    checkpoints: CheckpointRule = DEFAULT_RULE
    trace: str = ""
    """Digest of the model's trace, for members that train; empty if they have to trace the model themselves."""
    layout: FixedLayout | None = None
    """The layout from which `prepare` or `plan` makes the plan; None if there is a plan."""
    joins_stage: int | None = None
    """The stage of a process that joins with a planned change; None for a seat in the claim's first roster."""
    plan: str = ""
    """Name of the plan that has this stage, or that `plan` makes; empty if it is the plan of the claim."""
    has_limits: bool = False
    """Whether time or cost of the run is limited, so that the first member has to look at its allowance."""
    offer: str = ""
    """Name of the offer on which this member runs; empty in runs of earlier versions."""
    predicted_bytes: int = 0
    """Predicted peak memory of the member; 0 if nothing is predicted."""
    pace: tuple[StageTimes, ...] = ()
    """How long this member computes in each stage, in a rehearsal; empty if computing takes the time that it takes."""


class RehearsalSpec(WorkerSpec, frozen=True, kw_only=True, tag="rehearsal_spec"):
    """For `python -m zooid.worker`: take a seat in the roster, and sleep there instead of training a job.

    `pace` also has the sizes of the stages' messages and gradients.
    """

    ties: tuple[Tie, ...] = ()
    """Parameters that several stages share."""
    num_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.pace), "`pace` is empty; give the times of every stage")
        require_at_least(1, self, "num_steps")


class Failure(FileRecord, frozen=True, kw_only=True, tag="failure"):
    """The error of a failed member, which its coordinator reports to the user."""

    member: str
    error: str
    """Class name of the error."""
    message: str
    traceback: str
    user_frames: str = ""
    """The stack frames of the traceback that are in the user's own files."""
    is_input_error: bool
    """Whether the user's input was rejected, so that the message alone explains the error."""
    is_consequence: bool
    """Whether the member failed only because a peer was lost; the cause is then the peer's own failure."""
