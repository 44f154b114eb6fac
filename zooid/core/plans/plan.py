"""The decision: who runs which layers, on what, and what that is expected to take and cost."""

from itertools import pairwise
from typing import Literal, get_args

import msgspec

from zooid.core.errors import PlanError
from zooid.core.jobs.job import AutocastName
from zooid.core.records import FileRecord, Record, require
from zooid.core.resources.link import Link
from zooid.core.resources.offer import Offer
from zooid.core.runs.step_parts import StepParts
from zooid.core.text import quoted

ScheduleName = Literal["gpipe", "1f1b"]
OwnTransportName = Literal["store", "tcp"]
TransportName = Literal["store", "tcp", "gloo", "nccl"]
"""Ours, and the backends of torch that members may use instead."""
AllReduceName = Literal["auto", "exchange", "three_phase", "pipelined", "streaming", "ring"]


DEFAULT_MAX_MEMBERS = 4
MOST_MEMBERS = 2**16
"""More than anybody starts at once; who reads a plan makes a list of its members."""


def num_holders(num_replicas: int, *, is_insured: bool) -> int:
    """How many members hold each stage. An insured stage without replicas has a copy.

    >>> num_holders(1, is_insured=True), num_holders(3, is_insured=True), num_holders(1, is_insured=False)
    (2, 3, 1)
    """
    return max(2, num_replicas) if is_insured else num_replicas


class Limits(Record, frozen=True, kw_only=True):
    """What the user allows; None where there is no limit."""

    deadline_s: float | None = None
    budget_usd: float | None = None
    num_replicas: int | None = None
    """Pins the number of full pipelines."""
    num_stages: int | None = None
    """Pins the number of stages of each pipeline."""
    max_members: int = DEFAULT_MAX_MEMBERS
    schedule: ScheduleName | None = None
    """Pins the pipeline schedule; None lets the planner choose."""
    transport: TransportName | None = None
    """How members exchange: through the store, which is what None means, or connected with one another."""
    reproducible: bool = False
    """True asks for the same bits in every layout, and whatever members are lost."""
    insured: bool = False
    """True asks for two members or more that hold each stage, so that no step is lost with one of them. A stage without
    replicas gets a copy, which is a member of its own."""

    @property
    def is_direct(self) -> bool:
        """Whether members are to be connected with one another."""
        return self.transport not in (None, "store")

    @property
    def least_members(self) -> int:
        """The fewest members that any plan has, copies included."""
        return num_holders(self.num_replicas or 1, is_insured=self.insured) * (self.num_stages or 1)

    def __post_init__(self) -> None:
        for name in ("deadline_s", "budget_usd", "num_replicas", "num_stages", "max_members"):
            value = getattr(self, name)
            require(value is None or value > 0, f"`{name}` is {value}; it must be above 0")
        num_copies = self.least_members - (self.num_replicas or 1) * (self.num_stages or 1)
        copies = f", {num_copies} of them copies," if num_copies else ""
        require(
            self.least_members <= self.max_members,
            f"a layout of {self.least_members} members{copies} is asked for, but `max_members` is {self.max_members}: "
            "raise it",
        )
        require(
            not self.insured or self.transport in (None, *get_args(OwnTransportName)),
            f"`insured` is asked for with the transport {self.transport}, whose members cannot go on after a loss; "
            "give the transport store or tcp",
        )


class FixedLayout(Record, frozen=True, kw_only=True):
    """What a plan without a profile is made from, together with the traced model."""

    num_replicas: int
    num_stages: int
    schedule: ScheduleName
    transport: TransportName
    reproducible: bool = False
    insured: bool = False
    offer: Offer
    """What every member stands on."""


class StagePlan(Record, frozen=True, kw_only=True):
    """A run of layers, and what each of its members stands on."""

    first_layer: int
    end_layer: int
    """One past the last layer."""
    offer: str
    memory_bytes: int
    """Predicted peak of one member; 0 in a plan that was made without a profile."""

    def __post_init__(self) -> None:
        require(0 <= self.first_layer < self.end_layer, f"stage {self.first_layer}:{self.end_layer} holds no layer")
        require(self.memory_bytes >= 0, f"`memory_bytes` is {self.memory_bytes}; it must be at least 0")


class CostTerm(Record, frozen=True, kw_only=True):
    """One kind of expense; the terms of a prediction sum to its total."""

    kind: str
    usd: float


class Prediction(Record, frozen=True, kw_only=True):
    """What a plan is expected to take and to cost."""

    step_s: float
    """One full step, from its first action to its last member's apply, on the average."""
    step_p95_s: float | None = None
    """What 95 of 100 steps do not exceed; None where nobody predicted it."""
    num_steps: int
    startup_s: float
    run_s: float
    """Start-up and all steps."""
    run_p95_s: float | None = None
    """What 95 of 100 such runs do not exceed."""
    run_usd: float
    run_p95_usd: float | None = None
    cost_terms: tuple[CostTerm, ...]
    parts: StepParts | None = None
    """Where the time of a step goes."""
    estimated_from: str = ""
    """Name of the device that was measured, where the offer itself was not; empty where it was."""

    def __post_init__(self) -> None:
        require(self.num_steps >= 1, f"`num_steps` is {self.num_steps}; it must be at least 1")
        for name in ("step_s", "startup_s", "run_s"):
            require(getattr(self, name) >= 0, f"`{name}` is {getattr(self, name)}; it must be at least 0")


class Plan(FileRecord, frozen=True, kw_only=True, tag="plan"):
    """The best layout found, complete enough to be launched."""

    job: str
    model_fingerprint: str
    why_whole: str = ""
    """Why the model is trained as one stage, in words; empty where it can be cut."""
    autocast: AutocastName | None = None
    """As the job had it when it was measured."""
    batch_size: int
    grain_size: int
    num_replicas: int
    stages: tuple[StagePlan, ...]
    schedule: ScheduleName
    ahead: int = 0
    """Of 1F1B: how many more grains than usual a stage takes on for every stage behind it, so that transfers hide."""
    shares: tuple[int, ...] = ()
    """Whole grains of a full step for each replica; evenly where nothing is given."""
    transport: TransportName
    all_reduce: AllReduceName
    reproducible: bool = False
    """True adds up gradients in a fixed tree over grains, so that the trained bits do not depend on the layout."""
    insured: bool = False
    """True if each stage is held by two members or more. A stage without replicas then has a copy on the same offer: a
    member that computes no grains, but applies the stage's gradients."""
    replica_offers: tuple[str, ...] = ()
    """What all members of each replica stand on, where replicas differ; otherwise what their stages say."""
    offers: tuple[Offer, ...]
    """The offers that stages and replicas name, with the prices the prediction used."""
    store_at: str = ""
    """Place of the store whose prices the prediction used, as `aws.us-east-1` or `owned`; empty without prices."""
    links: tuple[Link, ...] = ()
    """Links that were given or measured for the prediction, beside those of the profile and of the catalog."""
    predicted: Prediction | None = msgspec.field(default=None, name="prediction")
    """None where the plan was made without a profile; stages then say nothing about memory."""
    unpredicted_steps: int = 0
    """Steps of the whole run, where nothing is predicted."""

    def __post_init__(self) -> None:
        require(len(self.stages) >= 1, "`stages` must not be empty")
        require(self.num_replicas >= 1, f"`num_replicas` is {self.num_replicas}; it must be at least 1")
        require(
            self.num_members <= MOST_MEMBERS,
            f"a plan of {quoted(str(self.num_members))} members is given; it may have at most {MOST_MEMBERS}",
        )
        require(
            not self.insured or self.survives_losses,
            f"`insured` is true, but members connected over {self.transport} cannot go on after a loss",
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
        for before, after in pairwise(self.stages):
            require(
                before.end_layer == after.first_layer,
                f"`stages` leave a gap or overlap between layers {before.end_layer} and {after.first_layer}",
            )
        known = {offer.name for offer in self.offers}
        for stage in self.stages:
            require(stage.offer in known, f"`stages` name the offer {stage.offer!r}, which `offers` does not hold")
        require(
            len(self.replica_offers) in (0, self.num_replicas),
            f"`replica_offers` names {len(self.replica_offers)} offers for {self.num_replicas} replica(s)",
        )
        for name in self.replica_offers:
            require(name in known, f"`replica_offers` names the offer {name!r}, which `offers` does not hold")

    @property
    def prediction(self) -> Prediction:
        """What the plan is expected to take; refused where the plan was made without a profile."""
        if self.predicted is None:
            raise PlanError(
                f"the plan for {self.job} was made without a profile, so that its time, money and memory are not "
                "known; make one that was measured with `zooid plan`"
            )
        return self.predicted

    @property
    def num_steps(self) -> int:
        return self.unpredicted_steps if self.predicted is None else self.predicted.num_steps

    @property
    def num_holders(self) -> int:
        """How many members hold each stage: its replicas, or its only one and a copy."""
        return num_holders(self.num_replicas, is_insured=self.insured)

    @property
    def num_copies(self) -> int:
        """Members that compute no grains."""
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
        """True if members notice when another one is lost, and can go on without it."""
        return self.transport in ("store", "tcp")

    @property
    def layout(self) -> str:
        """Replicas × stages, as people write it: `2x2`."""
        return f"{self.num_replicas}x{len(self.stages)}"

    def offer_of(self, stage: int, replica: int = 0) -> Offer:
        name = self.replica_offers[replica] if self.replica_offers else self.stages[stage].offer
        return next(offer for offer in self.offers if offer.name == name)

    @property
    def member_offers(self) -> list[Offer]:
        """The offer of every member. Members of the first replica come first, in stage order, and copies come last."""
        holders = [*range(self.num_replicas), *([0] if self.num_copies else [])]
        return [self.offer_of(stage, replica) for replica in holders for stage in range(len(self.stages))]
