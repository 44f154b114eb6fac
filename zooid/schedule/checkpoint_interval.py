"""How often a run should write checkpoints, by the formula of Young and Daly.

A checkpoint stops members for c s, and all that was computed since the last one is lost with a rollback. Rollbacks come
at random moments, 1 / Λ s apart on average. The time of w s of work with its checkpoint is then proportional to
exp(Λ (w + c)) − 1 (Daly 2006), which is least for each second of work where

    −log(1 − Λ w) − Λ w = Λ c,     about w = √(2 c / Λ) (Young 1974) if Λ c is small.
"""

import math

from zooid.core.runs.checkpoint import CheckpointRule

MIN_INTERVAL_S = 10.0
"""Writing beside the steps, and requests to the store, also cost something, however short the pause is."""
MAX_INTERVAL_S = 3600.0
"""Not only lost members end runs, so that no run should lose more than an hour."""

_UNMEASURED = 0.05
"""The first interval as a fraction of the time between two rollbacks, if the pause of a checkpoint is unknown."""


def best_interval_s(pause_s: float, between_rollbacks_s: float) -> float:
    """The interval with the least expected time, given the pause of a checkpoint and the time between two rollbacks.

    >>> round(best_interval_s(1.0, 3600.0), 1), round(math.sqrt(2 * 1.0 * 3600.0), 1)
    (84.2, 84.9)
    """
    paused = pause_s / between_rollbacks_s
    if not paused > 0:
        return MIN_INTERVAL_S
    # both are above the solution, from where Newton's steps on a convex function never pass it
    work = min(math.sqrt(2 * paused), -math.expm1(-paused - 1))
    for _ in range(50):
        step = (-math.log1p(-work) - work - paused) * (1 - work) / work
        work -= step
        if abs(step) <= 1e-12 * work:
            break
    return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, work * between_rollbacks_s))


def interval_of(rule: CheckpointRule, measured_pause_s: float | None = None) -> float | None:
    """Time between two checkpoints of this rule; None if it counts steps, or asks for none.

    An automatic rule that knows how often rollbacks come follows the measured pause, or else the predicted one. If both
    are unknown, the first checkpoint comes early, so that its pause is measured.
    """
    pause_s = rule.pause_s if measured_pause_s is None else measured_pause_s
    if rule.between_rollbacks_s is None or rule.every_s is None:
        return rule.every_s
    if pause_s is None:
        return min(rule.every_s, max(MIN_INTERVAL_S, _UNMEASURED * rule.between_rollbacks_s))
    return best_interval_s(pause_s, rule.between_rollbacks_s)
