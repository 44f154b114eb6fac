"""Who trains: the numbered list of members that holds from one step on, until a later roster replaces it."""

from typing import Literal

from msgspec import field

from zooid.core import keys
from zooid.core.records import FileRecord, Record, require, require_name
from zooid.core.text import quoted


class RosterSeat(Record, frozen=True, kw_only=True):
    """One member and its stage."""

    name: str
    stage: int

    def __post_init__(self) -> None:
        require_name("name", self.name)


class RosterMember(RosterSeat, frozen=True, kw_only=True):
    """A seat in a replica. The rank is its place in the roster's list."""

    replica: int


class StepNumbers(Record, frozen=True, kw_only=True):
    """Sums over a whole step. Every member derives the same verdict from them, bit for bit."""

    loss_sum: float
    weight: float
    square_sums: tuple[float, ...]
    """Σg² of each stage, in stage order."""
    is_finite: bool = True
    """False if a loss or a gradient was not finite; then all sums are 0, since records have finite numbers only."""


class Ruling(Record, frozen=True, kw_only=True):
    """What becomes of the step that the roster before could not finish. A ruling is never made twice."""

    kind: Literal["stands", "unfinished", "rolled_back"]
    """A step that `stands` is applied with its `numbers`, after all members hold its gradients. An `unfinished` step
    was applied by nobody: its lost grains are computed again. A run that is `rolled_back` goes on from a checkpoint."""
    numbers: StepNumbers | None = None

    def __post_init__(self) -> None:
        require((self.numbers is not None) == (self.kind == "stands"), "`numbers` belong to a step that stands")


class Answer(FileRecord, frozen=True, kw_only=True, tag="answer"):
    """What a member says about itself when its roster has to be replaced.

    From then on it neither votes nor applies under that roster, so that its answer stays true.
    """

    member: str
    change: int
    """Which roster has to be replaced: how often members have replaced the claim's first one."""
    num_applied: int
    """Number of steps that the member's parameters contain."""
    is_prepared: bool
    """True if the member holds the reduced gradients of its next step."""
    is_finite: bool = True
    """False if the member is prepared and found a loss or a gradient that is not finite; then the sums below are 0."""
    square_sum: float = 0.0
    """Σg² of the member's stage in that step, if it is prepared."""
    loss_sum: float = 0.0
    """Sum of that step's losses, if the member is prepared and has the last stage."""
    weight: float = 0.0
    """Sum of that step's weights, if the member is prepared and has the last stage."""
    applied: StepNumbers | None = None
    """Numbers of the last step that the member applied, if any."""
    is_between_steps: bool = False
    """True if the member has not finished what comes after its last step: evaluation, checkpoint, early stop."""
    num_evaluations: int = 0
    """Number of evaluations that the member knows the results of."""
    owes_checkpoint: bool = False
    """True if a checkpoint that the job has wished for is being written."""
    suspects: tuple[str, ...] = ()
    """Members that have left, or that this one has lost its connection to."""

    def __post_init__(self) -> None:
        require_name("member", self.member)
        require(self.change >= 0 and self.num_applied >= 0, "`change` and `num_applied` must be at least 0")


class Roster(FileRecord, frozen=True, kw_only=True, tag="roster"):
    """Written once, create-only: the first writer wins and everyone obeys it."""

    run: str
    number: int
    """Number of the claim that the roster belongs to; claims of a run are numbered from 0."""
    change: int = 0
    """How often members have replaced the claim's first roster, which its coordinator wrote."""
    resume_step: int
    """The first step this roster runs; the checkpoint or live state of exactly this many steps is its start."""
    members: tuple[RosterMember, ...]
    shares: tuple[int, ...]
    """Whole grains of a full step for each replica."""
    copies: tuple[RosterSeat, ...] = ()
    """Members that compute no grains, but apply the gradients of their stage, so that its state is not lost."""
    ruling: Ruling | None = None
    """What becomes of an unfinished step; None where there was none."""
    is_between_steps: bool = False
    """True if what comes after the last step has to be done before the first step of this roster."""
    grains: tuple[tuple[int, ...], ...] = ()
    """Grains of each replica in the first step that this roster computes; split by `shares` if this is empty."""
    optimizer_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Those of the job, where they differ from the checkpoint's: what its own checkpoints will hold."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require(
            min(self.number, self.change, self.resume_step) >= 0,
            "`number`, `change` and `resume_step` must be at least 0",
        )
        require(len(self.members) >= 1, "`members` must not be empty")
        names = [seat.name for seat in self._seats]
        require(len(set(names)) == len(names), f"`members` names a member twice: {quoted(str(names))}")
        # As many different seats as the largest numbers make: all are filled, and no hostile number is counted up to.
        seats = {(member.replica, member.stage) for member in self.members}
        require(
            all(replica >= 0 and stage >= 0 for replica, stage in seats)
            and len(seats) == len(self.members) == self.num_replicas * self.num_stages,
            f"`members` must fill every replica and stage exactly once; they fill {quoted(str(sorted(seats)))}",
        )
        require(
            len(self.shares) == self.num_replicas and min(self.shares) >= 0 and sum(self.shares) >= 1,
            f"`shares` is {quoted(str(self.shares))}; it must give each of {self.num_replicas} replicas its whole "
            "grains",
        )
        require(
            all(0 <= copy.stage < self.num_stages for copy in self.copies),
            f"`copies` must have one of the {self.num_stages} stages; they are {quoted(str(self.copies))}",
        )
        require(
            len(self.grains) in (0, self.num_replicas),
            f"`grains` has {len(self.grains)} parts; it must have one for each of {self.num_replicas} replicas",
        )

    @property
    def label(self) -> str:
        return keys.label(self.number, self.change)

    @property
    def num_replicas(self) -> int:
        return max(member.replica for member in self.members) + 1

    @property
    def num_stages(self) -> int:
        return max(member.stage for member in self.members) + 1

    @property
    def stages(self) -> dict[str, int]:
        """The stage of every member, copies included."""
        return {seat.name: seat.stage for seat in self._seats}

    @property
    def _seats(self) -> tuple[RosterSeat, ...]:
        return (*self.members, *self.copies)

    @property
    def first_computed(self) -> int:
        """The first step that this roster computes. One that stands comes before it, and is only applied."""
        stands = self.ruling is not None and self.ruling.kind == "stands"
        return self.resume_step + 1 if stands else self.resume_step

    def rank_of(self, name: str) -> int:
        return next(rank for rank, member in enumerate(self.members) if member.name == name)

    def rank_at(self, replica: int, stage: int) -> int:
        return next(r for r, m in enumerate(self.members) if m.replica == replica and m.stage == stage)

    def ranks_of_stage(self, stage: int) -> list[int]:
        """In order of replica."""
        return [self.rank_at(replica, stage) for replica in range(self.num_replicas)]

    def pipeline(self, replica: int) -> tuple[str, ...]:
        """Names of a replica's members, in stage order."""
        return tuple(self.members[self.rank_at(replica, stage)].name for stage in range(self.num_stages))
