"""What a member measures while it trains: how long its actions take, summed up over sampled steps.

The simulator yields the same statistics of a predicted step, so that both can be compared number by number.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import field

from zooid.core.records import FileRecord, Record, require, require_at_least, require_name
from zooid.core.text import quoted

FIRST_WRITE_STEPS = 20
"""Number of full steps after which members write their measurements for the first time."""

_MIN_STEP_S = 1e-6
_MAX = 1e7
"""No part of a step takes four months. A corrupt number must not spoil the arithmetic of those who read it."""


class Timing(Record, frozen=True, kw_only=True):
    """The time of one kind of work over the sampled steps."""

    median_s: float
    spread: float = 0.0
    """Interquartile range over the median; 0 with fewer than four samples."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "median_s", "spread")
        for name in ("median_s", "spread"):
            value = getattr(self, name)
            require(value <= _MAX, f"`{name}` is {value:g}; it must be at most {_MAX:g}")


class MessageTiming(Record, frozen=True, kw_only=True):
    """Messages of one kind between a member and a neighbour."""

    kind: str
    """`SEND_F`, `RECV_F`, `SEND_B` or `RECV_B`."""
    peer: str
    """The member at the other end."""
    num_bytes: int
    """Size of one message; 0 if the transport does not tell."""
    time: Timing
    """Time of one message, from its first byte to its last."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "num_bytes")


class ReduceTiming(Record, frozen=True, kw_only=True):
    """The all-reduce of one bucket over the replicas of a stage. A member that joins early waits for the last one."""

    number: int
    num_bytes: int
    """Size of the bucket; 0 if the transport does not tell."""
    num_ranks: int
    time: Timing

    def __post_init__(self) -> None:
        require_at_least(0, self, "number", "num_bytes")
        require_at_least(1, self, "num_ranks")


class StepMeasurements(FileRecord, frozen=True, kw_only=True, tag="step_measurements"):
    """What one member has measured under one roster. Only steps with a full batch count."""

    member: str
    replica: int
    stage: int
    num_grains: int
    """Number of grains that the member computes in a step."""
    num_steps: int
    """Number of steps that the member has run under the roster so far."""
    num_sampled: int
    """Number of steps from which the times are taken."""
    step: Timing
    """Time from the beginning of a step to its end on this member."""
    between: Timing
    """Time from the end of a step to the beginning of the next."""
    forward: Timing
    """Time of the forward of one grain, as the mean over the grains of a step. The backward is measured likewise."""
    backward: Timing
    update: Timing
    """Time of a commit without its vote."""
    vote: Timing
    """Time of the vote, with the wait for the last voter."""
    starts_s: dict[str, float] = field(default_factory=dict)
    """When each forward, each backward and the commit began, in median seconds from the beginning of the step. The text
    form of the action is the key. These times show how long the member waited for others and for links."""
    messages: tuple[MessageTiming, ...] = ()
    reduces: tuple[ReduceTiming, ...] = ()
    checkpoint: Timing | None = None
    """Pause in which a checkpoint is copied. None if none was begun."""

    def __post_init__(self) -> None:
        require_name("member", self.member)
        require_at_least(0, self, "replica", "stage")
        require_at_least(1, self, "num_grains", "num_steps", "num_sampled")
        for action, start_s in self.starts_s.items():
            require(
                0 <= start_s <= _MAX, f"`starts_s` of {quoted(action)} is {start_s:g}; it must be from 0 to {_MAX:g}"
            )
        require(
            self.step.median_s >= _MIN_STEP_S,
            f"`median_s` of `step` is {self.step.median_s:g}; it must be at least {_MIN_STEP_S:g}",
        )
        require(
            self.num_sampled <= self.num_steps,
            f"`num_sampled` is {self.num_sampled}; it must be at most `num_steps`, {self.num_steps}",
        )


def is_write_due(num_steps: int) -> bool:
    """Whether a member writes its measurements after so many full steps: after 20, 40, 80 and so on.

    >>> [number for number in range(200) if is_write_due(number)]
    [20, 40, 80, 160]
    """
    rounds, rest = divmod(num_steps, FIRST_WRITE_STEPS)
    return rest == 0 and rounds > 0 and rounds & (rounds - 1) == 0


def num_writes(num_steps: float) -> int:
    """Number of times that each member writes its measurements in a run, the last time at its end.

    >>> [num_writes(number) for number in (1, 19, 20, 39, 40, 1000)]
    [1, 1, 2, 2, 3, 7]
    """
    return 1 if num_steps < FIRST_WRITE_STEPS else 1 + int(num_steps // FIRST_WRITE_STEPS).bit_length()


def timing(seconds: Sequence[float]) -> Timing:
    """Sum up the times of one kind of work in several steps."""
    median_s = statistics.median(seconds)
    if len(seconds) < 4 or median_s == 0:
        return Timing(median_s=median_s)
    low, _, high = statistics.quantiles(seconds, n=4)
    return Timing(median_s=median_s, spread=(high - low) / median_s)


def step_means(runs: Iterable[tuple[str, int | None, float]]) -> dict[str, float]:
    """Mean seconds of the actions of one member in one step, from their kinds, numbers and seconds.

    Actions on grains are averaged over the grains. All-reduces are told apart by their number.

    >>> step_means([("F", 0, 1.0), ("F", 1, 3.0), ("REDUCE", 0, 5.0), ("REDUCE", 1, 6.0), ("COMMIT", None, 1.0)])
    {'F': 2.0, 'REDUCE0': 5.0, 'REDUCE1': 6.0, 'COMMIT': 1.0}
    """
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for kind, number, duration_s in runs:
        seconds[f"{kind}{number}" if kind in ("REDUCE", "SHARE") else kind].append(duration_s)
    return {name: statistics.fmean(durations) for name, durations in seconds.items()}
