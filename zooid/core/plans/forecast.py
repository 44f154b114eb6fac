"""What is said of a plan beside its prediction: what holds it back, what changes would bring, what a run measured."""

from typing import Literal

from zooid.core.plans.plan import Prediction
from zooid.core.records import FileRecord, Record
from zooid.core.runs.step_parts import StepParts
from zooid.core.runs.timeline import Timeline

BottleneckKind = Literal["compute", "transfer", "reduce", "requests", "bubble"]
Change = Literal["replica", "batch"]


class Rate(Record, frozen=True, kw_only=True):
    """How fast samples are trained, and what they cost with everything that the whole run costs."""

    samples_per_s: float
    """Of full steps."""
    usd_per_million_samples: float
    samples_per_usd: float | None
    """None where nothing is charged."""


class Bottleneck(Record, frozen=True, kw_only=True):
    """What costs a step most, on the member that computes longest."""

    kind: BottleneckKind
    """`requests` are round trips and looks into the store: how much sooner a step would end if messages took no longer
    than their bytes; `transfer` and `reduce`, if these took no time either. `bubble` is what is left beside computing.
    """
    member: str
    share: float
    """Of the step, that it costs."""
    sentence: str
    """What it is, and what would help."""


class Gain(Record, frozen=True, kw_only=True):
    """What a change of the plan would bring, simulated."""

    change: Change
    """One more `replica`, which is as many members as a pipeline has; or twice the `batch` on the same members."""
    num_members: int
    batch_size: int
    rate: Rate | None = None
    """None where the change cannot be made."""
    speedup: float | None = None
    """Samples a second that it adds, as a part of those without it."""
    usd_change: float | None = None
    """Of the dollars for a million samples, as a part of those without it; None where nothing is charged."""
    by_granularity: float | None = None
    """The speedup that follows from the granularity alone, as if communication took no longer than now."""
    problem: str = ""
    """Why it cannot be made."""


class MeasuredRun(Record, frozen=True, kw_only=True):
    """What a run of the plan took, as its members have recorded it."""

    run: str
    """URL of its folder."""
    num_steps: int
    """That were timed: full ones, the first left out."""
    step_s: float
    """On the average."""
    step_p50_s: float
    step_p95_s: float
    timeline: Timeline | None
    """Of its last full step; None where members have not ended well."""
    run_s: float | None
    """None where it has not ended, or was resumed."""
    members_usd: float | None
    """Bill of the members' time and starts, at the plan's prices."""


class Forecast(FileRecord, frozen=True, kw_only=True, tag="forecast"):
    """A prediction, and what follows from it."""

    job: str
    layout: str
    """Replicas × stages."""
    prices: str
    """Whose prices the dollars are, in words."""
    prediction: Prediction
    step_p50_s: float
    """Of the step whose parts and timeline are given: the one in the middle, by duration."""
    granularity: float | None
    """Time of computing over time of communicating; None where nothing is communicated."""
    rate: Rate
    bottleneck: Bottleneck
    gains: tuple[Gain, ...]
    timeline: Timeline
    notes: tuple[str, ...] = ()
    """What the prediction could not know."""
    measured: MeasuredRun | None = None

    @property
    def parts(self) -> StepParts:
        """Where the time of the step in the middle goes."""
        parts = self.prediction.parts
        assert parts is not None, "a forecast is made from a simulated step"
        return parts

    @property
    def members_usd(self) -> float:
        """Of the bill, what members cost."""
        return sum(term.usd for term in self.prediction.cost_terms if term.kind in MEMBER_KINDS)


MEMBER_KINDS = ("compute", "start-up", "starts")
"""Of the kinds of cost, those that a run's own bill has."""
