"""Everything said about a plan beside its prediction: its bottleneck, the gain of changes, and a measured run."""

from typing import Literal

from zooid.core.plans.correction import Correction
from zooid.core.plans.plan import Prediction
from zooid.core.records import FileRecord, Record
from zooid.core.runs.step_parts import StepParts
from zooid.core.runs.timeline import Timeline

BottleneckKind = Literal["compute", "transfer", "reduce", "requests", "bubble"]
Change = Literal["replica", "batch"]


class Rate(Record, frozen=True, kw_only=True):
    """Throughput, and the cost of a sample with everything that the whole run costs."""

    samples_per_s: float
    """Throughput of full steps."""
    usd_per_million_samples: float
    samples_per_usd: float | None
    """Samples trained for a dollar. None if nothing is charged."""


class Bottleneck(Record, frozen=True, kw_only=True):
    """What costs most of a step, on the member that computes longest."""

    kind: BottleneckKind
    """`requests` are round trips and polls of the store: the time saved if messages took only as long as their bytes.
    `transfer` and `reduce` are the time saved if bytes took no time either. `bubble` is the remaining idle time."""
    member: str
    share: float
    """Fraction of the step that the bottleneck costs."""
    sentence: str
    """A sentence that says what the bottleneck is, and what would help."""


class Gain(Record, frozen=True, kw_only=True):
    """The simulated gain of a change to the plan."""

    change: Change
    """`replica` adds one replica, and `batch` doubles the batch on the same members."""
    num_members: int
    batch_size: int
    rate: Rate | None = None
    """Throughput and cost after the change. None if the change is infeasible."""
    speedup: float | None = None
    """Relative increase of the throughput."""
    usd_change: float | None = None
    """Relative change of the dollars for a million samples. None if nothing is charged."""
    by_granularity: float | None = None
    """Relative increase of the throughput by the granularity alone, as if communication took no longer than now."""
    problem: str = ""
    """Reason why the change is infeasible. Empty if it is feasible."""


class MeasuredRun(Record, frozen=True, kw_only=True):
    """Measured times and cost of a run of the plan, as its members recorded them."""

    run: str
    """URL of the run's folder."""
    num_steps: int
    """Number of timed steps: all full steps but the first."""
    step_s: float
    """Mean step time."""
    step_p50_s: float
    step_p95_s: float
    timeline: Timeline | None
    """Timeline of the last full step. None if members did not exit cleanly."""
    run_s: float | None
    """Time of the whole run. None if it has not ended, or was resumed."""
    members_usd: float | None
    """Cost of the members' time and starts, at the plan's prices."""


class Forecast(FileRecord, frozen=True, kw_only=True, tag="forecast"):
    """A plan's prediction with its rates, its bottleneck and the gain of changes."""

    job: str
    layout: str
    """The number of replicas and of stages, for example `2x2`."""
    prices: str
    """A phrase that says whose prices the dollars are."""
    prediction: Prediction
    step_p50_s: float
    """Median step time. The parts and the timeline are those of the median step."""
    granularity: float | None
    """Compute time divided by communication time. None if nothing is communicated."""
    rate: Rate
    bottleneck: Bottleneck
    gains: tuple[Gain, ...]
    timeline: Timeline
    notes: tuple[str, ...] = ()
    """Sentences about what the prediction could not know."""
    measured: MeasuredRun | None = None
    corrections: tuple[Correction, ...] = ()
    """What earlier runs have corrected in profiles and links before the prediction."""

    @property
    def parts(self) -> StepParts:
        """How the time of the median step divides."""
        parts = self.prediction.parts
        assert parts is not None, "a forecast is made from a simulated step"
        return parts

    @property
    def members_usd(self) -> float:
        """The part of the cost that members cause."""
        return sum(term.usd for term in self.prediction.cost_terms if term.kind in MEMBER_KINDS)


MEMBER_KINDS = ("compute", "start-up", "starts", "losses", "hand-overs")
"""The kinds of cost that a measured run also knows."""
