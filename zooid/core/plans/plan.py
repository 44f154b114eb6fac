"""A plan says which members run which layers on which offers, and what that is predicted to take and cost."""

from itertools import pairwise
from typing import Literal, get_args

import msgspec
from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.jobs.job import AutocastName
from zooid.core.plans.loss_forecast import LossForecast
from zooid.core.records import FileRecord, Record, require
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.core.runs.step_parts import StepParts
from zooid.core.text import quoted

ScheduleName = Literal["gpipe", "1f1b"]
OwnTransportName = Literal["store", "tcp"]
TransportName = Literal["store", "tcp", "gloo", "nccl"]
"""The package has two transports of its own, and members may use two backends of torch instead."""
AllReduceName = Literal["auto", "exchange", "three_phase", "pipelined", "streaming", "ring"]

DEFAULT_MAX_MEMBERS = 4
MAX_MEMBERS = 2**16
"""No run has more members. Readers of a plan list its members, so a corrupt number must not exhaust memory."""


def num_holders(num_replicas: int, *, is_insured: bool) -> int:
    """Number of members that hold each stage. An insured stage without replicas has a copy.

    >>> num_holders(1, is_insured=True), num_holders(3, is_insured=True), num_holders(1, is_insured=False)
    (2, 3, 1)
    """
    return max(2, num_replicas) if is_insured else num_replicas


class Limits(Record, frozen=True, kw_only=True):
    """The limits that a user sets. None means that there is no limit."""

    deadline_s: float | None = None
    budget_usd: float | None = None
    num_replicas: int | None = None
    """The required number of replicas."""
    num_stages: int | None = None
    """The required number of stages."""
    max_members: int = DEFAULT_MAX_MEMBERS
    schedule: ScheduleName | None = None
    """The required pipeline schedule. None lets the planner choose."""
    transport: TransportName | None = None
    """The required transport. None lets the planner choose between the store and, where links are known, TCP."""
    reproducible: bool = False
    """Whether the trained bits must be the same in every layout and after every lost member."""
    insured: bool = False
    """Whether at least two members must hold each stage, so that a lost member costs no step. A stage without replicas
    gets a copy, which is a member of its own."""

    @property
    def is_direct(self) -> bool:
        """Whether members must be connected with one another."""
        return self.transport not in (None, "store")

    @property
    def least_members(self) -> int:
        """The smallest number of members that the limits allow, copies included."""
        return num_holders(self.num_replicas or 1, is_insured=self.insured) * (self.num_stages or 1)

    def __post_init__(self) -> None:
        for name in ("deadline_s", "budget_usd", "num_replicas", "num_stages", "max_members"):
            value = getattr(self, name)
            require(value is None or value > 0, f"`{name}` is {value}; it must be above 0")
        num_copies = self.least_members - (self.num_replicas or 1) * (self.num_stages or 1)
        copies = f", {num_copies} of them copies," if num_copies else ","
        require(
            self.least_members <= self.max_members,
            f"the layout needs {self.least_members} members{copies} but `max_members` is {self.max_members}; raise it, "
            "or ask for a smaller layout",
        )
        require(
            not self.insured or self.transport in (None, *get_args(OwnTransportName)),
            f"`insured` is asked for with the transport {self.transport}, whose members cannot continue without a lost "
            "one; give the transport store or tcp",
        )


class FixedLayout(Record, frozen=True, kw_only=True):
    """The layout of a job that is trained without a profile. With the traced model, it determines the plan."""

    num_replicas: int
    num_stages: int
    schedule: ScheduleName
    transport: TransportName
    reproducible: bool = False
    insured: bool = False
    offers: tuple[Offer, ...]
    """The offer of every replica, or of every stage if there is a single replica; one stands for all."""

    @property
    def offer(self) -> Offer:
        """The first offer, for members that only prepare."""
        return self.offers[0]

    def offer_at(self, index: int) -> Offer:
        """The offer of the replica or stage with this number."""
        return self.offers[index if len(self.offers) > 1 else 0]


class StagePlan(Record, frozen=True, kw_only=True):
    """A contiguous run of layers, and the offer that its members run on."""

    first_layer: int
    end_layer: int
    """One past the last layer."""
    offer: str
    memory_bytes: int
    """Predicted peak memory of one member. 0 in a plan that was made without a profile."""

    def __post_init__(self) -> None:
        require(0 <= self.first_layer < self.end_layer, f"stage {self.first_layer}:{self.end_layer} holds no layer")
        require(self.memory_bytes >= 0, f"`memory_bytes` is {self.memory_bytes}; it must be at least 0")


class CostTerm(Record, frozen=True, kw_only=True):
    """One kind of expense. The terms of a prediction sum to its total cost."""

    kind: str
    usd: float


class Prediction(Record, frozen=True, kw_only=True):
    """The predicted time and cost of a plan."""

    step_s: float
    """Mean time of a full step, from its first action until the last member has applied it."""
    step_p95_s: float | None = None
    """95th percentile of the step time. None if it was not predicted."""
    num_steps: int
    startup_s: float
    run_s: float
    """Time of the whole run: start-up and all steps."""
    run_p95_s: float | None = None
    """95th percentile of the run time."""
    run_usd: float
    run_p95_usd: float | None = None
    cost_terms: tuple[CostTerm, ...]
    parts: StepParts | None = None
    """How the time of a step divides into computing, transfers, reducing and waiting."""
    losses: LossForecast | None = None
    """Expected losses and hand-overs, which are part of the run's time and cost. None if there are none to expect."""
    estimated_from: str = ""
    """Name of the measured device from which the times were estimated. Empty if the offer itself was measured."""

    def __post_init__(self) -> None:
        require(self.num_steps >= 1, f"`num_steps` is {self.num_steps}; it must be at least 1")
        for name in ("step_s", "startup_s", "run_s"):
            require(getattr(self, name) >= 0, f"`{name}` is {getattr(self, name)}; it must be at least 0")


class Plan(FileRecord, frozen=True, kw_only=True, tag="plan"):
    """Who runs what, complete enough to be launched. The search also plans without a prediction, to predict next."""

    job: str
    model_fingerprint: str
    why_whole: str = ""
    """Reason why the model is trained as one stage. Empty if it can be cut."""
    autocast: AutocastName | None = None
    """The job's autocast type when it was measured."""
    batch_size: int
    grain_size: int
    num_replicas: int
    stages: tuple[StagePlan, ...]
    schedule: ScheduleName
    ahead: int = 0
    """Number of grains that a 1F1B stage starts early for every stage behind it, so that computing hides transfers."""
    shares: tuple[int, ...] = ()
    """Number of grains of a full step that each replica computes. Empty divides them evenly."""
    transport: TransportName
    all_reduce: AllReduceName
    reproducible: bool = False
    """Whether gradients are summed in a fixed tree over grains, so that the layout does not change the trained bits."""
    insured: bool = False
    """Whether at least two members hold each stage. A stage without replicas then has a copy on the same offer: a
    member that computes no grains, but applies the stage's gradients."""
    replica_offers: tuple[str, ...] = ()
    """The offer of each replica, where replicas differ. Empty means that the stages name the offers."""
    offers: tuple[Offer, ...]
    """The offers that stages and replicas name, with the prices that the prediction used."""
    store_at: str = ""
    """Location of the store whose prices the prediction used: `aws.us-east-1`, or `owned`. Empty without prices."""
    links: tuple[Link, ...] = ()
    """Links that the user gave or measured, beside those of the profile and of the catalog."""
    predicted: Prediction | None = msgspec.field(default=None, name="prediction")
    """The predicted time and cost. None if the plan was made without a profile, or has not been predicted yet."""
    unpredicted_steps: int = 0
    """Number of steps of the whole run, if nothing is predicted."""

    def __post_init__(self) -> None:
        require(len(self.stages) >= 1, "`stages` must not be empty")
        require(self.num_replicas >= 1, f"`num_replicas` is {self.num_replicas}; it must be at least 1")
        require(
            self.num_members <= MAX_MEMBERS,
            f"the plan has {quoted(str(self.num_members))} members; it may have at most {MAX_MEMBERS}",
        )
        require(
            not self.insured or self.survives_losses,
            f"`insured` is true, but members connected over {self.transport} cannot continue without a lost one",
        )
        require(self.batch_size >= 1, f"`batch_size` is {self.batch_size}; it must be at least 1")
        require(
            1 <= self.grain_size <= self.batch_size,
            f"`grain_size` is {self.grain_size}; it must be between 1 and the batch size {self.batch_size}",
        )
        require(self.ahead >= 0, f"`ahead` is {self.ahead}; it must be at least 0")
        num_grains = -(-self.batch_size // self.grain_size)
        require(
            not self.shares or (len(self.shares) == self.num_replicas and sum(self.shares) == num_grains),
            f"`shares` is {quoted(str(self.shares))}; it must divide {num_grains} grains among {self.num_replicas} "
            "replica(s)",
        )
        require(self.stages[0].first_layer == 0, "`stages` must begin with layer 0")
        cuts = [(before.end_layer, after.first_layer) for before, after in pairwise(self.stages)]
        gap = next(((end, first) for end, first in cuts if end != first), ())
        require(not gap, f"`stages` leave a gap or overlap between layers {' and '.join(map(str, gap))}")
        require(
            len(self.replica_offers) in (0, self.num_replicas),
            f"`replica_offers` names {len(self.replica_offers)} offers for {self.num_replicas} replica(s)",
        )
        known = {offer.name for offer in self.offers}
        named = (*(stage.offer for stage in self.stages), *self.replica_offers)
        unknown = next((name for name in named if name not in known), None)
        require(unknown is None, f"stages or replicas name the offer {unknown!r}, which `offers` does not hold")

    @property
    def prediction(self) -> Prediction:
        """The predicted time and cost. PlanError if the plan was made without a profile."""
        if self.predicted is None:
            raise PlanError(
                f"the plan for {self.job} was made without a profile, so its time, cost and memory are unknown; make a "
                "predicted plan with `zooid plan`"
            )
        return self.predicted

    @property
    def num_steps(self) -> int:
        return self.unpredicted_steps if self.predicted is None else self.predicted.num_steps

    @property
    def num_holders(self) -> int:
        """Number of members that hold each stage, copies included."""
        return num_holders(self.num_replicas, is_insured=self.insured)

    @property
    def num_copies(self) -> int:
        """Number of members that only copy a stage, and compute no grains."""
        return self.num_members - self.num_replicas * len(self.stages)

    @property
    def num_members(self) -> int:
        return self.num_holders * len(self.stages)

    @property
    def is_direct(self) -> bool:
        """Whether members are connected with one another."""
        return self.transport != "store"

    @property
    def survives_losses(self) -> bool:
        """Whether members detect a lost member and can continue without it."""
        return self.transport in ("store", "tcp")

    @property
    def layout(self) -> str:
        """The number of replicas and of stages, for example `2x2`."""
        return f"{self.num_replicas}x{len(self.stages)}"

    @property
    def partition(self) -> tuple[tuple[int, int], ...]:
        """The layers [first, end) of each stage."""
        return tuple((stage.first_layer, stage.end_layer) for stage in self.stages)

    @property
    def offer_rows(self) -> tuple[tuple[Offer, ...], ...]:
        """Offers by replica and stage. A single row stands for all replicas, unless these differ."""
        by_name = {offer.name: offer for offer in self.offers}
        if self.replica_offers:
            return tuple((by_name[name],) * len(self.stages) for name in self.replica_offers)
        return (tuple(by_name[stage.offer] for stage in self.stages),)

    def offer_of(self, stage: int, replica: int = 0) -> Offer:
        """The offer of one member."""
        rows = self.offer_rows
        return rows[replica if len(rows) > 1 else 0][stage]

    def emulated(self) -> "Plan":
        """Return the plan as it is rehearsed: members of rented offers run on this machine."""
        return structs.replace(self, offers=tuple(offer.emulated() for offer in self.offers))

    @property
    def member_offers(self) -> list[Offer]:
        """The offer of every member. Members of the first replica come first, in stage order, and copies come last."""
        rows = self.offer_rows
        return [offer for row in (rows if len(rows) > 1 else rows * self.num_holders) for offer in row]
