"""Rosters: the numbered list of members that train from one step on, until a later roster replaces it."""

from typing import Literal

from msgspec import field

from zooid.core.records import FileRecord, Record, require, require_at_least, require_name
from zooid.core.runs import keys
from zooid.core.text import quoted


class RosterSeat(Record, frozen=True, kw_only=True):
    """One member and its stage."""

    name: str
    stage: int

    def __post_init__(self) -> None:
        require_name("name", self.name)


class RosterMember(RosterSeat, frozen=True, kw_only=True):
    """A seat in a replica."""

    replica: int


class StepNumbers(Record, frozen=True, kw_only=True):
    """Sums over a whole step, from which every member derives the same verdict, bit for bit."""

    loss_sum: float
    weight: float
    square_sums: tuple[float, ...]
    """Σg² of each stage, in stage order."""
    is_finite: bool = True
    """Whether all losses and gradients were finite. A sum that is not finite is given as 0."""
    batch_size: int | None = None
    """Batch size from the next step on, or 0 if it stays. None if nobody knows the vote on the step."""
    rate_factor: float = 0.0
    """Factor on the learning rate from the next step on; 0 if `batch_size` is 0 or None."""
    first_square_sum: float = 0.0
    """Σg² of the mean gradients of first grains, for the gradient noise scale; 0 if it is not measured."""
    noise_square_sum: float = 0.0
    """Σg² of the step's gradient over the same parameters."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "batch_size", "rate_factor", "first_square_sum", "noise_square_sum")


class Ruling(Record, frozen=True, kw_only=True):
    """The verdict on the step that the previous roster could not finish. It is never judged again."""

    kind: Literal["stands", "unfinished", "rolled_back", "planned"]
    """A step that `stands` is applied with its `numbers`, after all members hold its gradients. Nobody applied an
    `unfinished` step: its lost grains are computed again. A `rolled_back` run continues from a checkpoint. After a
    `planned` change all members have applied the step before, or hold its gradients and apply it with its `numbers`."""
    numbers: StepNumbers | None = None

    def __post_init__(self) -> None:
        require(
            (self.numbers is not None) == (self.kind in ("stands", "planned")),
            f"`kind` is {self.kind}; give `numbers` for a step that stands or a planned change, and for no other",
        )


class Answer(FileRecord, frozen=True, kw_only=True, tag="answer"):
    """The state that a member reports when its roster has to be replaced.

    From then on it neither votes nor applies under that roster, so that its answer stays true.
    """

    member: str
    change: int
    """The roster that has to be replaced: how often members have replaced the claim's first one."""
    has_state: bool = True
    """False for a newcomer that has not confirmed the whole state of its stage; it knows nothing about steps."""
    num_applied: int
    """Number of steps that the member's parameters contain."""
    is_prepared: bool
    """Whether the member holds the reduced gradients of its next step."""
    is_finite: bool = True
    """False if the member is prepared and its losses or gradients are not finite. Such a sum is given as 0."""
    square_sum: float = 0.0
    """Σg² of the member's stage in that step, if it is prepared."""
    loss_sum: float = 0.0
    """Sum of that step's losses, if the member is prepared and has the last stage."""
    weight: float = 0.0
    """Sum of that step's weights, if the member is prepared and has the last stage."""
    applied: StepNumbers | None = None
    """Numbers of the last step that the member applied, if any."""
    has_finished: bool = False
    """Whether the member's pipeline has computed all its grains of the next step, and the member has their sums."""
    is_between_steps: bool = False
    """Whether evaluation, checkpoint or early stop after the member's last step are still pending."""
    num_evaluations: int = 0
    """Number of evaluations whose results the member knows."""
    owes_checkpoint: bool = False
    """Whether a checkpoint that the job has requested is being written."""
    suspects: tuple[str, ...] = ()
    """Members that have left, or to which this one has lost its connection."""

    def __post_init__(self) -> None:
        require_name("member", self.member)
        require_at_least(0, self, "change", "num_applied")
        require(self.has_state or not self.is_prepared, "`is_prepared` is true for a member without state")


class Joining(FileRecord, frozen=True, kw_only=True, tag="joining"):
    """The request of a new process for a seat in the roster that replaces this one."""

    member: str
    """Name of the process, which no member of the claim may ever have had."""
    change: int
    """The newest roster that the process knows: how often members have replaced the claim's first one."""

    def __post_init__(self) -> None:
        require_name("member", self.member)
        require_at_least(0, self, "change")


class Roster(FileRecord, frozen=True, kw_only=True, tag="roster"):
    """The members that train and their seats. A roster is written create-only: the first writer wins, all obey."""

    run: str
    number: int
    """Number of the claim to which the roster belongs; claims of a run are numbered from 0."""
    change: int = 0
    """Number of times that members have replaced the claim's first roster, which its coordinator wrote."""
    resume_step: int
    """The first step of this roster, which starts from the state after exactly this many steps."""
    members: tuple[RosterMember, ...]
    shares: tuple[int, ...]
    """Number of grains of a full step that each replica computes."""
    copies: tuple[RosterSeat, ...] = ()
    """Members that compute no grains, but vote and apply their stage's gradients, so that its state is not lost."""
    guests: tuple[RosterSeat, ...] = ()
    """Processes that will have a seat in the next roster, with their stage there.

    They receive the state of their layers while the members compute one step, and vote and apply it.
    """
    attempt: int = 0
    """Number of the planned change that this roster carries out, among those planned for the roster before it."""
    plan: str = ""
    """Name of the plan that the members follow; empty if it is the plan of the claim."""
    newcomers: tuple[str, ...] = ()
    """Members and copies that receive the state of their stage from another member before the first step."""
    former: tuple[str, ...] = ()
    """Names in earlier rosters of the claim that this one does not have. No process may join under such a name."""
    num_planned_replicas: int = 0
    """Number of replicas in the claim's first roster, to which newcomers may refill it; 0 in that roster itself."""
    ruling: Ruling | None = None
    """Verdict on the unfinished step; None if there was none."""
    is_between_steps: bool = False
    """Whether evaluation, checkpoint or early stop after the last step come before this roster's first step."""
    grains: tuple[tuple[int, ...], ...] = ()
    """Grains of each replica in the first step that this roster computes; if empty, they are split by `shares`."""
    computed: tuple[tuple[int, ...], ...] = ()
    """The part of `grains` that each replica has already computed and holds the sums of; empty if there is none."""
    optimizer_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The job's optimizer settings for later checkpoints, if they differ from those of the last checkpoint."""

    def __post_init__(self) -> None:
        require_name("run", self.run)
        require_at_least(0, self, "number", "change", "resume_step", "attempt")
        require(len(self.members) >= 1, "`members` must not be empty")
        names = [seat.name for seat in self.seats]
        require(len(set(names)) == len(names), f"`members` names a member twice: {quoted(str(names))}")
        require(
            not set(names) & set(self.former),
            f"`former` names members that have a seat: {quoted(str(sorted(set(names) & set(self.former))))}",
        )
        # Counting the distinct seats proves that all are filled, without a loop up to an untrusted number.
        seats = {(member.replica, member.stage) for member in self.members}
        require(
            all(replica >= 0 and stage >= 0 for replica, stage in seats)
            and len(seats) == len(self.members) == self.num_replicas * self.num_stages,
            f"`members` must fill every replica and stage exactly once; they fill {quoted(str(sorted(seats)))}",
        )
        require(
            len(self.shares) == self.num_replicas and min(self.shares) >= 0 and sum(self.shares) >= 1,
            f"`shares` is {quoted(str(self.shares))}; it must give each of {self.num_replicas} replicas a number of "
            "grains",
        )
        require(
            all(0 <= copy.stage < self.num_stages for copy in self.copies),
            f"`copies` is {quoted(str(self.copies))}; every copy must have one of the {self.num_stages} stages",
        )
        require(
            not self.guests or self.is_planned,
            f"`guests` is {quoted(str(self.guests))}; only a planned change has guests",
        )
        self._check_newcomers()
        require(
            self.num_planned_replicas == 0 or self.num_planned_replicas >= self.num_replicas,
            f"`num_planned_replicas` is {self.num_planned_replicas}; the roster has {self.num_replicas}",
        )
        require(
            len(self.grains) in (0, self.num_replicas),
            f"`grains` has {len(self.grains)} parts; it must have one for each of {self.num_replicas} replicas",
        )
        require(
            not self.computed
            or (
                len(self.computed) == len(self.grains)
                and all(set(done) <= set(grains) for done, grains in zip(self.computed, self.grains, strict=True))
            ),
            "`computed` must be a subset of each replica's `grains`",
        )

    def _check_newcomers(self) -> None:
        if not self.newcomers:
            return
        require(
            self.ruling is not None and self.ruling.kind not in ("rolled_back", "planned"),
            "`newcomers` are given, but all members read their state from a checkpoint",
        )
        require(
            self.stages.keys() >= set(self.newcomers),
            f"`newcomers` must have seats; they are {quoted(str(self.newcomers))}",
        )
        sources = {seat.stage for seat in self.seats if seat.name not in self.newcomers}
        require(
            len(sources) == self.num_stages,
            f"each stage needs a member that is none of the newcomers {quoted(str(self.newcomers))}",
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
        """The stage of every member, copies included, but not guests."""
        return {seat.name: seat.stage for seat in (*self.members, *self.copies)}

    @property
    def seats(self) -> tuple[RosterSeat, ...]:
        """All seats in rank order: those of the replicas, then those of the copies, then those of the guests."""
        return (*self.members, *self.copies, *self.guests)

    @property
    def is_planned(self) -> bool:
        """Whether the roster was planned ahead, and not written because a member was lost."""
        return self.ruling is not None and self.ruling.kind == "planned"

    @property
    def num_voters(self) -> int:
        """Number of votes that a commit needs: one from every seat."""
        return len(self.seats)

    @property
    def first_computed(self) -> int:
        """The first step that this roster computes. A step that stands comes before it and is only applied."""
        stands = self.ruling is not None and self.ruling.kind == "stands"
        return self.resume_step + 1 if stands else self.resume_step

    def rank_of(self, name: str) -> int:
        return next(rank for rank, seat in enumerate(self.seats) if seat.name == name)

    def replica_of(self, name: str) -> int | None:
        """Return the replica of a member; None for a copy."""
        return next((member.replica for member in self.members if member.name == name), None)

    def rank_at(self, replica: int, stage: int) -> int:
        return next(r for r, m in enumerate(self.members) if m.replica == replica and m.stage == stage)

    def ranks_of_stage(self, stage: int) -> list[int]:
        """List the ranks that apply this stage's gradients: its replicas in order, then its copies."""
        copies = [rank for rank, copy in enumerate(self.copies, len(self.members)) if copy.stage == stage]
        return [*(self.rank_at(replica, stage) for replica in range(self.num_replicas)), *copies]

    def pipeline(self, replica: int) -> tuple[str, ...]:
        """Return the names of a replica's members in stage order."""
        return tuple(self.members[self.rank_at(replica, stage)].name for stage in range(self.num_stages))
