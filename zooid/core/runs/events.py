"""Events of a run as typed records in JSON lines, from which progress bars, pictures and reports are made."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from zooid.core.errors import RecordError
from zooid.core.plans.plan import CostTerm
from zooid.core.records import Record
from zooid.core.resources.tariff import Tariff
from zooid.core.text import quoted


class BaseEvent(Record, frozen=True, kw_only=True, tag_field="event"):
    """Base class of all events."""

    at_s: float
    """Unix time on the writer's clock."""


class PhaseStarted(BaseEvent, frozen=True, kw_only=True, tag="phase_started"):
    """The coordinator began the next phase of its work."""

    phase: str


class ProfileProgress(BaseEvent, frozen=True, kw_only=True, tag="profile_progress"):
    done: int
    total: int


class RunStarted(BaseEvent, frozen=True, kw_only=True, tag="run_started"):
    run: str
    store: str
    layout: str
    num_steps: int
    first_step: int
    batch_size: int
    predicted_step_s: float | None
    """Predicted time of a step. All predictions are None if the plan was made without a profile."""
    predicted_run_s: float | None
    predicted_usd: float | None
    members: tuple[str, ...]
    prices: str
    """Source of the prices, in words."""
    why_whole: str = ""
    """Why the model is trained as one stage, in words; empty if it could be cut."""
    checkpoints: str = ""
    """How often checkpoints are written, and why, in words."""


class OptimizerChanged(BaseEvent, frozen=True, kw_only=True, tag="optimizer_changed"):
    """A run continues with other optimizer settings than its checkpoint was trained with."""

    settings: dict[str, tuple[str, ...]]
    """New settings, such as `lr`, with their different values over the parameter groups."""
    before: dict[str, tuple[str, ...]]
    """Settings of the checkpoint."""


class ModelTraced(BaseEvent, frozen=True, kw_only=True, tag="model_traced"):
    """The model was traced once for all members of the run."""

    digest: str
    """Digest of the trace, with which members find it."""
    why_traced: str = ""
    """Why members have to trace the model themselves nevertheless, in words; empty if they need not."""


class MemberStarted(BaseEvent, frozen=True, kw_only=True, tag="member_started"):
    """The member is ready for its first step."""

    member: str
    num_layers: int
    parameter_bytes: int
    cpu_s: float = 0.0
    """CPU time of its process so far."""


class MemberPrinted(BaseEvent, frozen=True, kw_only=True, tag="member_printed"):
    """The job's code printed a line in a training member."""

    member: str
    text: str
    """The line without its newline."""

    def line(self, num_members: int) -> str:
        """Return the line as it is shown, prefixed with the member's name if there are several members."""
        return f"[{self.member}] {self.text}" if num_members > 1 else self.text


class MemberTrained(BaseEvent, frozen=True, kw_only=True, tag="member_trained"):
    """A member has done all its steps."""

    member: str
    peak_bytes: int
    """Peak memory of its process."""


class StepCommitted(BaseEvent, frozen=True, kw_only=True, tag="step_committed"):
    step: int
    epoch: int
    loss: float
    """Mean loss over the samples of the step."""
    num_samples: int
    step_s: float
    gradient_norm: float = 0.0
    """Norm of the whole model's gradients before clipping."""
    learning_rate: float | None = None
    """Learning rate of the first stage's first parameter group in this step."""
    is_skipped: bool = False
    """Whether scaled fp16 gradients overflowed, so that no parameter changed."""


class BatchChanged(BaseEvent, frozen=True, kw_only=True, tag="batch_changed"):
    """The run continues with another batch size or learning-rate factor."""

    step: int
    """The first step of that size."""
    batch_size: int
    rate_factor: float
    """Factor on the learning rate that the job's optimizer and scheduler give."""
    num_steps: int
    """Number of steps that the whole run now has."""


class ScalingWanted(BaseEvent, frozen=True, kw_only=True, tag="scaling_wanted"):
    """The job's scaling policy wants a change. A field that is None stays as it is."""

    step: int
    """The first step for which it wants the change."""
    batch_size: int | None = None
    rate_factor: float | None = None
    num_replicas: int | None = None


class ScalingExpected(BaseEvent, frozen=True, kw_only=True, tag="scaling_expected"):
    """The job's scaling policy will want another number of replicas, so that members can be started ahead."""

    step: int
    """The first step for which it will want them."""
    num_replicas: int


class Evaluated(BaseEvent, frozen=True, kw_only=True, tag="evaluated"):
    """The model was evaluated on the whole evaluation data set."""

    epoch: int
    step: int
    """Number of steps committed before it; 0 if it came before training."""
    loss: float
    metrics: dict[str, float]
    num_samples: int
    wall_s: float


class CheckpointSaved(BaseEvent, frozen=True, kw_only=True, tag="checkpoint_saved"):
    step: int
    """Number of steps committed before it."""
    url: str
    """URL of the checkpoint's folder."""
    is_best: bool = False
    """Whether the checkpoint is kept as the best one so far."""
    pause_s: float | None = None
    """Time for which copying the state stopped the first member."""
    next_in_s: float | None = None
    """Interval to the next checkpoint, if it follows from the pause and from the expected rollbacks."""


class StoppedEarly(BaseEvent, frozen=True, kw_only=True, tag="stopped_early"):
    """The run ends before its last step, at the request of its job or of a person."""

    step: int
    """Number of steps committed before it."""
    reason: str
    by_request: bool = False
    """Whether a person ended it with `zooid stop`, so that the run can be resumed."""


class MemberExited(BaseEvent, frozen=True, kw_only=True, tag="member_exited"):
    member: str
    exit_text: str
    offer: str = ""
    """Name of its offer; empty in runs of earlier versions."""


class RosterChanged(BaseEvent, frozen=True, kw_only=True, tag="roster_changed"):
    """A member was lost, and the survivors continue without it."""

    change: int
    """Number of times that members have replaced the coordinator's roster."""
    members: tuple[str, ...]
    """Members that train from now on."""
    step: int
    """The first step that they compute."""
    ruling: str
    """Fate of the step in flight: `stands`, `unfinished` or `rolled_back`."""
    wall_s: float
    """Time from noticing the lost member until all survivors were ready again."""


class PaceMissed(BaseEvent, frozen=True, kw_only=True, tag="pace_missed"):
    """A rehearsed member cannot compute as fast as planned. It says so once."""

    member: str
    planned_s: float
    """Planned time of computing in one step."""
    computed_s: float
    """Time that it took."""


class MembersAdopted(BaseEvent, frozen=True, kw_only=True, tag="members_adopted"):
    """A coordinator has taken over members that were training without one."""

    members: tuple[str, ...]
    step: int
    """The next step that they will report."""


class StoreUsed(BaseEvent, frozen=True, kw_only=True, tag="store_used"):
    """The requests and bytes of a member since its process began; a later report replaces an earlier one."""

    member: str
    num_puts: int
    num_gets: int
    num_lists: int
    sent_bytes: int
    """Bytes that it has sent to the run's store."""
    received_bytes: int
    """Bytes that it has received from the run's store."""
    data_gets: int = 0
    """Number of gets from the store of the data set."""
    data_bytes: int = 0
    """Bytes of the data set that it has fetched."""


class RunningMember(Record, frozen=True, kw_only=True):
    """A member that still costs money, as the bill of a run knows it."""

    member: str
    offer: str
    site: str
    tariff: Tariff
    usd_per_start: float = 0.0
    """The part of the tariff that its start has cost."""
    prepares: bool = False
    """Whether the member only prepares for training: it profiles, writes the initial weights, or checks a job."""


class Metered(BaseEvent, frozen=True, kw_only=True, tag="metered"):
    """The cost of the run so far, from its first claim on."""

    usd: float
    """Sum of the terms."""
    terms: tuple[CostTerm, ...] = ()
    """What the cost consists of."""
    usd_per_s: float = 0.0
    """How fast the cost grows at present."""
    running: tuple[RunningMember, ...] = ()
    """Members that are not settled yet, because they run."""
    settled: tuple[CostTerm, ...] = ()
    """The terms without the running members, for a coordinator that takes over."""
    trains_from_s: float | None = None
    """Unix time at which the first step of these members began; None before it."""


class PriceChanged(BaseEvent, frozen=True, kw_only=True, tag="price_changed"):
    """Members on an offer cost more or less from now on."""

    offer: str
    usd_per_hour: float
    before_usd_per_hour: float


class LimitsEndangered(BaseEvent, frozen=True, kw_only=True, tag="limits_endangered"):
    """At the measured speed, the run will not end within its limits. It goes on until a limit is reached."""

    reason: str
    """Which limit will break, and by how much."""
    would_hold: str
    """What would hold the limits, or which limits would hold."""


class FleetChosen(BaseEvent, frozen=True, kw_only=True, tag="fleet_chosen"):
    """The run will go on with other members, which are started now."""

    plan: str
    """Name of the plan that it will follow; empty if it is the plan of the claim."""
    fleet: str
    """The members in words, such as `1 × aws.ec2.p3.8xlarge and 8 × aws.ec2.g3.8xlarge`."""
    reason: str
    """What has happened, for example which member was lost."""
    because: str
    """Why this fleet was chosen among others."""
    end_at_s: float
    """Expected Unix time of the end."""
    usd: float
    """Expected cost of the whole run."""


class RunFinished(BaseEvent, frozen=True, kw_only=True, tag="run_finished"):
    wall_s: float
    step_s: float
    """Median time of the full steps, without the first."""
    usd: float
    """Cost of the whole run, from its first claim on: the sum of the terms."""
    terms: tuple[CostTerm, ...] = ()
    checkpoint: str
    """URL of the last checkpoint's folder."""


Event = (
    PhaseStarted
    | ProfileProgress
    | RunStarted
    | OptimizerChanged
    | ModelTraced
    | MemberStarted
    | MemberPrinted
    | MemberTrained
    | StepCommitted
    | BatchChanged
    | ScalingWanted
    | ScalingExpected
    | Evaluated
    | CheckpointSaved
    | StoppedEarly
    | MemberExited
    | RosterChanged
    | PaceMissed
    | MembersAdopted
    | StoreUsed
    | Metered
    | PriceChanged
    | LimitsEndangered
    | FleetChosen
    | RunFinished
)

_DECODER = msgspec.json.Decoder(Event, strict=False)


def encode_events(events: Iterable[Event]) -> bytes:
    """Encode events as JSON lines."""
    return b"".join(msgspec.json.encode(json_ready(msgspec.to_builtins(event))) + b"\n" for event in events)


def json_ready(value: Any) -> Any:
    """Replace numbers that are not finite by texts, because JSON cannot represent them; the decoder reads them back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: json_ready(item) for key, item in value.items()}
    return value


def decode_events(data: bytes, source: str) -> list[Event]:
    """Decode JSON lines; the error for a line that is not an event names its number."""
    events: list[Event] = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            events.append(_checked(_DECODER.decode(line)))
        except (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError) as error:
            raise RecordError(f"{source}, line {number} is not an event: {quoted(str(error))}") from error
    return events


def _checked(event: Event) -> Event:
    """Reject integers beyond 64 bits: zooid writes none, and arithmetic would overflow."""
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"`{name}` has {value.bit_length()} bits; it must fit into 64")
    return event
