"""The expected time of a run whose members are lost or run out of time, as a sum of terms.

It is assumed that members are lost independently of one another, at constant rates, and also while they start; that a
replacement on the same offer can be had, and starts as soon as the others have agreed to continue without it; and that
a run is long compared with a start-up. Then:

- A lost member whose stage others still hold costs a pause. The others take over its grains until a replacement has
  joined, which makes steps slower (`availability`).
- A lost member whose stage nobody else holds costs a rollback: waiting for a replacement, reading the checkpoint, and
  everything since that checkpoint once more (`restarts`). This is exact if no stage has replicas or copies. With them,
  rollbacks are rare, and are taken to come at random moments at their mean rate. If a run has only one stage, nobody is
  left, and all members are started again.
- A member whose lifetime ends costs a pause, since its successor is ready before (`handovers`).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from zooid.core.errors import HopelessPlan
from zooid.core.plans.loss_forecast import TimeKind, TimeTerm, seconds_of
from zooid.predictor.losses.availability import SeatRisk, losses_per_s, mean_speed, rollbacks_per_s
from zooid.predictor.losses.handovers import Handovers, handovers
from zooid.predictor.losses.restarts import Moments, Restarted, restarted

JOINING_STEPS = 2.0
"""Steps between the readiness of a replacement and the end of slower steps: half a step until a step begins, one step
as a guest, and half a step because the whole step in which the member was lost is slower."""
_MAX_PAUSED = 0.9
"""Fraction of the time that pauses may take. Above it, a run hardly advances."""
RAREST_PER_S = 1e-100
"""Rollbacks that are rarer are never expected. The time between two of them could overflow."""
_PASSES = 4
"""The number of hand-overs and the run time depend on one another; a few passes settle both."""


@dataclass(frozen=True, kw_only=True)
class CheckpointTiming:
    """How often checkpoints are written, and what they take."""

    interval_s: float | None
    """Time between two checkpoints; None if only the first and the last are written."""
    pause_s: float
    """Time for which copying the state stops a member."""
    write_s: float
    """Time to write the copy while training goes on. Only then does the checkpoint count."""
    read_s: float
    """Time to read a checkpoint after a rollback."""


@dataclass(frozen=True, kw_only=True)
class RunRisk:
    """A run without losses, and what may happen to it."""

    stages: tuple[tuple[SeatRisk, ...], ...]
    """The seats of each stage. Copies come last."""
    num_replicas: int
    survives_losses: bool
    startup_s: float
    """Time from the launch of all members to the first step."""
    num_steps: float
    step_s: float
    slowdown: float
    """Time of a step with one pipeline fewer, relative to a step with all."""
    loss_pause_s: float
    """Time from the loss of a member until the others continue, beside what they compute again."""
    change_pause_s: float
    """Pause of a planned change of the roster, in which replacements or successors take their seats."""
    checkpoints: CheckpointTiming

    @property
    def seats(self) -> list[SeatRisk]:
        return [seat for seats in self.stages for seat in seats]


@dataclass(frozen=True)
class RiskyRun:
    """The expected course of a run with losses."""

    terms: tuple[TimeTerm, ...]
    p95_s: float
    """95th percentile of the run time, as far as losses decide it."""
    num_losses: float
    num_rollbacks: float
    redone_s: float
    """Time of steps that are computed once more after rollbacks."""
    handovers: Handovers
    between_rollbacks_s: float | None

    @property
    def run_s(self) -> float:
        return math.fsum(term.seconds for term in self.terms)

    def seconds(self, *kinds: TimeKind) -> float:
        """Sum of the terms of these kinds."""
        return seconds_of(self.terms, *kinds)


def risky_run(risk: RunRisk) -> RiskyRun:
    """The expected course of a run. HopelessPlan says why a run would hardly advance."""
    joining_s = JOINING_STEPS * risk.step_s if risk.survives_losses else 0.0
    loss_rate = losses_per_s(risk.stages)
    missing_s = joining_s + risk.loss_pause_s
    rollback_rate = rollbacks_per_s(risk.stages, missing_s, survives_losses=risk.survives_losses)
    steps_s = risk.num_steps * risk.step_s
    slower_s = steps_s / mean_speed(risk.stages, risk.num_replicas, joining_s, risk.slowdown) - steps_s
    paused = _paused(risk, joining_s, rollback_rate)
    pauses_s = (steps_s + slower_s) * paused / (1 - paused)
    start = restarted(risk.startup_s, loss_rate)
    recovery = _recovery(risk, loss_rate)
    terms: dict[TimeKind, float] = {}
    planned = Handovers((0.0,) * len(risk.seats), 0.0)
    for _ in range(_PASSES):
        changes_s = planned.num_changes * risk.change_pause_s
        working_s = steps_s + slower_s + pauses_s + changes_s
        segments = _segments(risk, working_s, rollback_rate, recovery)
        undisturbed_s = _undisturbed_s(risk, working_s)
        recovered_s = segments.num_losses * recovery.mean_s
        terms = {
            "start-up": risk.startup_s,
            "steps": steps_s,
            "checkpoints": undisturbed_s - working_s,
            "slower steps": slower_s,
            "lost members": pauses_s,
            "hand-overs": changes_s,
            "waiting": recovered_s + start.time.mean_s - risk.startup_s,
            "redone": segments.time.mean_s - undisturbed_s - recovered_s,
        }
        run_s = math.fsum(terms.values())
        planned = handovers(risk.stages, run_s, risk.step_s)
    variance = start.time.variance + segments.time.variance + _variance_of_pauses(risk, joining_s, run_s, paused)
    at_least_s = risk.startup_s + _undisturbed_s(risk, steps_s + terms["hand-overs"])
    return RiskyRun(
        terms=tuple(TimeTerm(kind=kind, seconds=max(0.0, seconds)) for kind, seconds in terms.items()),
        p95_s=at_least_s + _p95(run_s - at_least_s, variance, math.exp(-loss_rate * at_least_s)),
        num_losses=loss_rate * run_s,
        num_rollbacks=segments.num_losses,
        redone_s=max(0.0, terms["redone"]),
        handovers=planned,
        between_rollbacks_s=1 / rollback_rate if rollback_rate > RAREST_PER_S else None,
    )


def _paused(risk: RunRisk, joining_s: float, rollback_rate: float) -> float:
    """Fraction of the time that a working run spends in pauses after losses that cost no rollback."""
    if not risk.survives_losses:
        return 0.0
    held = [(seat, seat.losses_per_s * seat.held(joining_s)) for seat in risk.seats]
    survived = math.fsum(rate for _, rate in held) - rollback_rate
    paused = max(0.0, survived) * (risk.loss_pause_s + risk.change_pause_s)
    if risk.num_replicas == 1 and max(map(len, risk.stages)) > 1:  # a copy takes the seat, and the step begins again
        paused += math.fsum(rate for seat, rate in held if seat.work) * risk.step_s / 2
    if paused > _MAX_PAUSED:
        raise HopelessPlan(
            f"pauses after lost members take {paused:.0%} of the time; give offers that are interrupted less often"
        )
    return paused


def _recovery(risk: RunRisk, loss_rate: float) -> Moments:
    """Time from a rollback's loss until steps run again; another loss meanwhile begins it again.

    All seats of the stage are empty then. If there are several, the first replacement has started before. A run with
    one stage has nobody left who could agree on anything: it ends at once, and all members are started again.
    """
    if not loss_rate:
        return Moments(0.0)
    if len(risk.stages) == 1:
        longest_s = max(seat.startup_s for seat in risk.seats)
        return restarted(longest_s + risk.checkpoints.read_s, loss_rate).time
    weighted_s = math.fsum(
        seat.losses_per_s * seat.startup_s / (len(seats) if risk.survives_losses else 1)
        for seats in risk.stages
        for seat in seats
    )
    again = losses_per_s([seats for seats in risk.stages if len(seats) == 1 or not risk.survives_losses])
    return restarted(risk.loss_pause_s + weighted_s / loss_rate + risk.checkpoints.read_s, again).time


def _undisturbed_s(risk: RunRisk, working_s: float) -> float:
    """Time of this work with its checkpoints, the last of which has to be written to the end, if nothing is lost."""
    timing = risk.checkpoints
    return working_s + timing.write_s + timing.pause_s * (1 + _num_between(risk, working_s)[0])


def _num_between(risk: RunRisk, working_s: float) -> tuple[int, float]:
    """Number of checkpoints before the last one, and the work between two of them.

    A checkpoint waits for the end of a step, half a step on average, and for the one before it to be written.
    """
    timing = risk.checkpoints
    if timing.interval_s is None:
        return 0, working_s
    interval_s = max(timing.interval_s, timing.write_s) + risk.step_s / 2
    return max(0, math.ceil(working_s / interval_s) - 1), interval_s


def _segments(risk: RunRisk, working_s: float, rollback_rate: float, recovery: Moments) -> Restarted:
    """Time of all work with its checkpoints and rollbacks, from one complete checkpoint to the next.

    After a rollback, the time that the last checkpoint took to be written is lost, too.
    """
    timing = risk.checkpoints
    number, interval_s = _num_between(risk, working_s)
    last_s = working_s - number * interval_s + timing.pause_s
    if number == 0:
        return restarted(last_s + timing.write_s, rollback_rate, recovery)
    each_s = interval_s + timing.pause_s
    first = restarted(each_s + timing.write_s, rollback_rate, recovery)
    middle = restarted(each_s, rollback_rate, recovery, again_s=each_s + timing.write_s)
    last = restarted(last_s, rollback_rate, recovery, again_s=last_s + timing.write_s)
    return Restarted(
        first.time.plus(middle.time.times(number - 1)).plus(last.time),
        first.num_losses + (number - 1) * middle.num_losses + last.num_losses,
    )


def _variance_of_pauses(risk: RunRisk, joining_s: float, run_s: float, paused: float) -> float:
    """Variance of the time that survived losses cost: their number has a Poisson distribution."""
    rate = losses_per_s(risk.stages)
    if not rate or not risk.survives_losses:
        return 0.0
    lost_speed = 1 - mean_speed(risk.stages, risk.num_replicas, joining_s, risk.slowdown)
    each_s = (paused + lost_speed) / rate
    return rate * run_s * each_s**2


def _p95(mean_s: float, variance: float, unlost: float) -> float:
    """95th percentile of a delay that is 0 with the probability `unlost`, and has a gamma distribution otherwise.

    The quantile of the gamma distribution is that of Wilson and Hilferty.
    """
    if unlost >= 0.95 or mean_s <= 0 or variance <= 0:
        return 0.0 if unlost >= 0.95 else mean_s
    some_s = mean_s / (1 - unlost)
    spread = (variance + mean_s**2) / (1 - unlost) - some_s**2
    if spread <= 0:
        return some_s
    shape = some_s**2 / spread
    deviations = NormalDist().inv_cdf((0.95 - unlost) / (1 - unlost))
    return max(0.0, some_s * (1 - 1 / (9 * shape) + deviations / (3 * math.sqrt(shape))) ** 3)
