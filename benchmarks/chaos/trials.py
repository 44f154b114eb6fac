"""One disturbed run as data, drawn from a seed so that it can be repeated."""

import random
from dataclasses import dataclass
from typing import Literal

from benchmarks.chaos.jobs import NUM_STEPS, STEPS_PER_EPOCH
from zooid.core.plans.plan import TransportName

FaultKind = Literal["kill", "pause", "stop", "blink", "partition", "coordinator"]
"""`kill`, `stop` and `partition` are for good. `pause` stops a member for a while, `blink` cuts its link for a while.
`coordinator` kills the coordinator, and another one comes."""
LAYOUTS = ((2, 1), (1, 2), (2, 2), (3, 2), (4, 1))
JOBS = ("plain", "plain", "normed", "scaled")

_SCENES: tuple[tuple[float, tuple[FaultKind, ...]], ...] = (
    (0.30, ("kill",)),
    (0.16, ("kill", "kill")),
    (0.10, ("pause",)),
    (0.08, ("stop",)),
    (0.07, ("blink",)),
    (0.07, ("partition",)),
    (0.08, ("coordinator",)),
    (0.04, ("kill", "coordinator")),
    (0.10, ()),
)
"""How often each set of faults is drawn; where there is none, the store fails instead."""
_STORE_SHARE = 0.15
"""Share of the other runs in which the store fails, too."""
_INSURED_SHARE = 0.5
"""Share of the runs without replicas whose stages have copies."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to one process."""

    kind: FaultKind
    member: str
    """Empty for the coordinator."""
    after_step: int
    """Number of steps that some member has applied when it happens."""
    delay_s: float
    """Time from then on."""
    lasts_s: float | None = None
    """None if it is for good."""

    @property
    def is_loss(self) -> bool:
        """True if the others may have to go on without the member."""
        return self.kind != "coordinator"


@dataclass(frozen=True)
class Trial:
    """One run and all that happens to it."""

    seed: int
    job: str
    num_replicas: int
    num_stages: int
    transport: TransportName
    faults: tuple[Fault, ...]
    store_error_rate: float = 0.0
    store_delay_s: float = 0.0
    is_insured: bool = False

    @property
    def members(self) -> list[str]:
        """Names of all members, copies included."""
        return member_names(self.num_replicas, self.num_stages, is_insured=self.is_insured)

    @property
    def needs_namespaces(self) -> bool:
        return any(fault.kind in ("blink", "partition") for fault in self.faults)

    @property
    def may_tell_twice(self) -> bool:
        """True if a member may be taken for lost while it lives: it may tell late what others have told for it."""
        return any(fault.kind not in ("kill", "coordinator") for fault in self.faults)


def draw(seed: int, jobs: tuple[str, ...] = JOBS) -> Trial:
    """The trial of this seed."""
    dice = random.Random(seed)
    num_replicas, num_stages = dice.choice(LAYOUTS)
    is_insured = num_replicas == 1 and dice.random() < _INSURED_SHARE
    members = member_names(num_replicas, num_stages, is_insured=is_insured)
    job = dice.choice(jobs)
    transport: TransportName = dice.choice(("tcp", "tcp", "store"))
    [kinds] = dice.choices([kinds for _, kinds in _SCENES], [weight for weight, _ in _SCENES])
    dice.shuffle(members)
    faults = [_draw_fault(dice, kind, members.pop() if kind != "coordinator" else "") for kind in kinds]
    has_store_faults = not kinds or dice.random() < _STORE_SHARE
    return Trial(
        seed=seed,
        job=job,
        num_replicas=num_replicas,
        num_stages=num_stages,
        transport=transport,
        faults=tuple(sorted(faults, key=lambda fault: (fault.after_step, fault.delay_s))),
        store_error_rate=dice.choice((0.02, 0.1)) if has_store_faults else 0.0,
        store_delay_s=dice.choice((0.01, 0.05)) if has_store_faults else 0.0,
        is_insured=is_insured,
    )


def member_names(num_replicas: int, num_stages: int, *, is_insured: bool) -> list[str]:
    """As the first roster has them."""
    members = [f"r{replica}s{stage}" for replica in range(num_replicas) for stage in range(num_stages)]
    return members + [f"c0s{stage}" for stage in range(num_stages)] if is_insured else members


def _draw_fault(dice: random.Random, kind: FaultKind, member: str) -> Fault:
    """During a step, during an evaluation, or while the last checkpoint is written."""
    moment = dice.choices(("step", "evaluation", "end"), (0.7, 0.2, 0.1))[0]
    if moment == "step":
        after_step, delay_s = dice.randrange(1, NUM_STEPS - 1), dice.uniform(0.0, 0.1)
    elif moment == "evaluation":
        after_step, delay_s = STEPS_PER_EPOCH * dice.randrange(1, NUM_STEPS // STEPS_PER_EPOCH), dice.uniform(0, 0.08)
    else:
        after_step, delay_s = NUM_STEPS, dice.uniform(0.0, 0.15)
    lasts_s = dice.uniform(0.5, 4.0) if kind in ("pause", "blink") else None
    return Fault(kind, member, after_step, round(delay_s, 4), None if lasts_s is None else round(lasts_s, 2))
