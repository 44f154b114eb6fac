"""What happens in a run, as typed records in JSON lines: all that pictures, progress bars and reports are made from."""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from zooid.core.errors import RecordError
from zooid.core.records import Record
from zooid.core.text import quoted


class BaseEvent(Record, frozen=True, kw_only=True, tag_field="event"):
    """`at_s` is Unix time on the writer's clock."""

    at_s: float


class PhaseStarted(BaseEvent, frozen=True, kw_only=True, tag="phase_started"):
    """The coordinator turned to the next part of its work."""

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
    """None where the plan was made without a profile; so are the next two."""
    predicted_run_s: float | None
    predicted_usd: float | None
    members: tuple[str, ...]
    prices: str
    """Whose prices the dollars are, in words."""
    why_whole: str = ""
    """Why the model is trained as one stage, in words; empty where it could be cut."""


class OptimizerChanged(BaseEvent, frozen=True, kw_only=True, tag="optimizer_changed"):
    """A run goes on with other settings of its optimizer than the checkpoint was trained with."""

    settings: dict[str, tuple[str, ...]]
    """What the job gives the optimizer now, as `lr`: the different values of its groups of parameters."""
    before: dict[str, tuple[str, ...]]


class ModelTraced(BaseEvent, frozen=True, kw_only=True, tag="model_traced"):
    """The model was traced once for all members of the run."""

    digest: str
    """Digest of the trace, by which members find it."""
    why_traced: str = ""
    """Why members have to trace the model themselves all the same, in words; empty where they need not."""


class MemberStarted(BaseEvent, frozen=True, kw_only=True, tag="member_started"):
    """The member is ready for its first step."""

    member: str
    num_layers: int
    parameter_bytes: int
    cpu_s: float = 0.0
    """Processor time that its process has taken so far."""


class MemberPrinted(BaseEvent, frozen=True, kw_only=True, tag="member_printed"):
    """The job's code has printed a line in a member that trains."""

    member: str
    text: str
    """Without the end of the line."""

    def line(self, num_members: int) -> str:
        """As it is shown: with the member's name, where there are several."""
        return f"[{self.member}] {self.text}" if num_members > 1 else self.text


class MemberTrained(BaseEvent, frozen=True, kw_only=True, tag="member_trained"):
    """A member has done all its steps."""

    member: str
    peak_bytes: int
    """The most memory that its process has had."""


class StepCommitted(BaseEvent, frozen=True, kw_only=True, tag="step_committed"):
    step: int
    epoch: int
    loss: float
    """Mean over the samples of the step."""
    num_samples: int
    step_s: float
    gradient_norm: float = 0.0
    """Over the whole model, before clipping."""
    learning_rate: float | None = None
    """Of the first group of parameters of the first stage, in this step."""
    is_skipped: bool = False
    """Scaled fp16 gradients overflowed: no parameter was changed."""


class Evaluated(BaseEvent, frozen=True, kw_only=True, tag="evaluated"):
    """The whole evaluation data set went through the pipeline."""

    epoch: int
    step: int
    """Steps committed before it; 0 where it came before training."""
    loss: float
    metrics: dict[str, float]
    num_samples: int
    wall_s: float


class CheckpointSaved(BaseEvent, frozen=True, kw_only=True, tag="checkpoint_saved"):
    step: int
    """Steps committed before it."""
    url: str
    """Of its folder."""
    is_best: bool = False
    """True where the checkpoint is kept as the best one so far."""


class StoppedEarly(BaseEvent, frozen=True, kw_only=True, tag="stopped_early"):
    """The run ends before its last step, because its job wishes so."""

    step: int
    """Steps committed before it."""
    reason: str


class MemberExited(BaseEvent, frozen=True, kw_only=True, tag="member_exited"):
    member: str
    exit_text: str


class RosterChanged(BaseEvent, frozen=True, kw_only=True, tag="roster_changed"):
    """A member was lost, and the others go on without it."""

    change: int
    """How often members have replaced the roster that the coordinator wrote."""
    members: tuple[str, ...]
    """Members that train from now on."""
    step: int
    """The first step that they compute."""
    ruling: str
    """What became of the step that was under way: `stands`, `unfinished` or `rolled_back`."""
    wall_s: float
    """Time from when the loss was noticed until all members were ready again."""


class MembersAdopted(BaseEvent, frozen=True, kw_only=True, tag="members_adopted"):
    """A coordinator has taken over members that were training without one."""

    members: tuple[str, ...]
    step: int
    """The next step that they tell of."""


class Metered(BaseEvent, frozen=True, kw_only=True, tag="metered"):
    """Dollars so far, at the plan's prices."""

    usd: float


class RunFinished(BaseEvent, frozen=True, kw_only=True, tag="run_finished"):
    wall_s: float
    step_s: float
    """Median of the full steps, the first one left out."""
    usd: float
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
    | Evaluated
    | CheckpointSaved
    | StoppedEarly
    | MemberExited
    | RosterChanged
    | MembersAdopted
    | Metered
    | RunFinished
)

_DECODER = msgspec.json.Decoder(Event, strict=False)


def encode_events(events: Iterable[Event]) -> bytes:
    return b"".join(msgspec.json.encode(speakable(msgspec.to_builtins(event))) + b"\n" for event in events)


def speakable(value: Any) -> Any:
    """JSON has no words for numbers that are not finite; a text says what they are, and is read back as a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: speakable(each) for key, each in value.items()}
    return value


def decode_events(data: bytes, source: str) -> list[Event]:
    """Read JSON lines back; a line that is not an event is named by its number."""
    events: list[Event] = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            events.append(_checked(_DECODER.decode(line)))
        except (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError) as error:
            raise RecordError(f"{source}, line {number} is not an event: {quoted(str(error))}") from error
    return events


def _checked(event: Event) -> Event:
    """The event, unless a whole number in it has more than 64 bits: none was written, and arithmetic would overflow."""
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"`{name}` has {value.bit_length()} bits; it must fit into 64")
    return event
