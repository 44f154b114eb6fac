"""What the layers in front of a half-built pipeline take at least, whatever their stages will be.

Pipelines are built from the last stage to the first. For the layers [0, p) that are left, a shortest path gives

    u(p) = min (Σ ahead + λ · rate)                                  the forward sum alone
    v(p) = min over the stage [a, p) of max(v(a) + ahead + back + get, u(a) + ahead + back + sync − slack) + λ · price

for several prices of time λ and, in cells, for several heights. Why they are bounds:

- λ: for every way to complete, sum + λ · rate is at least the minimum, so sum ≥ v − λ · rate for every λ at once. The
  upper envelope of these lines bounds the time for any rate.
- A cell k holds pipelines whose height (the largest `height_s` of a stage) is in [low, high]: no stage of theirs is
  higher than `high`, which leaves out edges of the path; one is a peak, at least `low` high; and ∆f + ∆b ≥ low.
- v's first term is for a stage further in front that ends last, its second for the stage [a, p) itself. u and v are
  minimised apart, though of the same stages: that only lowers them.
- A stage's backward waits only for stations from there on. With a peak behind it, that is `low` at least. Behind the
  last peak it is at least the stage's own, and `slack` takes off what may be missing. So both paths are computed: with
  a peak behind p (PEAK), and with none behind p, which has to pass one further in front (NO_PEAK).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zooid.planner.resources.labels import Labels
from zooid.planner.resources.stages import Ints, Stages
from zooid.predictor.equations.array_checks import Array

NEVER_S = 1e200
"""Of what cannot be: beyond any time, and still a number when it is multiplied."""


@dataclass(frozen=True)
class Aim:
    """Least time · (usd · rate · d + s), among pipelines faster than `limit_s`."""

    usd: float
    s: float
    limit_s: float = float("inf")

    def value(self, time_s: Array, rate: Array, num_replicas: int) -> Array:
        """α₁ · cost + α₂ · time; infinite for what is not fast enough."""
        found: Array = time_s * (self.usd * num_replicas * rate + self.s)
        return np.where(time_s < self.limit_s, found, np.inf) if np.isfinite(self.limit_s) else found


@dataclass(frozen=True, eq=False)
class Envelope:
    """Corners of the lines w − λ · rate over all λ: the last axis of both is the corner.

    Time · (α₁ · rate + α₂) is concave where time falls linearly with the rate, so its least is at a corner.
    """

    lines: Array
    rate: Array
    time_s: Array

    @classmethod
    def over(cls, lines: Array, prices: Array, least_rate: Array) -> "Envelope":
        """Lines that are nowhere the highest are harmless: each is lowered until slopes are in order, which keeps the
        bound. There is nothing to the left of the least rate that any completion has."""
        is_open = np.isfinite(lines[..., 0]) & np.isfinite(least_rate)
        lowered = np.where(is_open[..., None], lines, 0.0)
        rate = np.zeros_like(lowered)
        for at in range(len(prices) - 1):
            step = prices[at + 1] - prices[at]
            slope = (lowered[..., at + 1] - lowered[..., at]) / step
            rate[..., at] = np.minimum(slope, rate[..., at - 1]) if at else slope
            lowered[..., at + 1] = lowered[..., at] + rate[..., at] * step
        rate = np.maximum(rate, np.where(is_open, least_rate, 0.0)[..., None])
        time_s = (lowered[..., None, :] - prices * rate[..., :, None]).max(axis=-1)
        return cls(lines, rate, np.where(is_open[..., None], time_s, NEVER_S))


NO_PEAK, PEAK = 0, 1


class Bounds:
    """Shortest paths of one degree, for some cells and prices of time, and what they say of half-built pipelines."""

    def __init__(self, stages: Stages, low_s: Array, high_s: Array, prices: Array) -> None:
        self.stages, self.low_s, self.high_s, self.prices = stages, low_s, high_s, prices
        shape = (stages.num_layers + 1, 2, len(low_s), len(prices))
        self.ahead_s, self.ends_s = np.full(shape, np.inf), np.full(shape, np.inf)
        self.least_rate = np.full((shape[0], shape[2]), np.inf)
        self.choice: Ints = np.zeros(shape, np.int64)
        # before the first stage nothing has to end, and without a peak this is no pipeline of the cell
        self.ahead_s[0, PEAK], self.ends_s[0, PEAK], self.least_rate[0] = 0.0, 0.0, 0.0
        for end in range(1, stages.num_layers + 1):
            self._solve(end)
        rates = _least_from(self.least_rate)
        self.least_rate_at: Array = rates[:, 0]
        self.whole = Envelope.over(self.ends_s[-1, NO_PEAK], prices, self.least_rate[-1])
        self.own = Envelope.over(self.ends_s[:, PEAK], prices, self.least_rate)
        higher = _least_from(self.ends_s[:, NO_PEAK] + stages.laps * low_s[:, None])
        self.higher = Envelope.over(_padded(higher), prices, _padded(rates))
        self.forward = Envelope.over(_least_from(self.ahead_s[:, PEAK]), prices, rates)

    def _own(self, part: Ints) -> tuple[Array, Array]:
        """Of these stages: the sums, and [stage, cell] the slack."""
        stages = self.stages
        both_s = stages.ahead_s[part] + stages.back_s[part]
        own_s = stages.longest_ahead_s[part] + stages.longest_own_s[part]
        slack = stages.laps * np.maximum(self.low_s - own_s[:, None], 0.0)
        slack[stages.first[part] == 0] = 0.0  # the first stage waits for all of them
        return both_s, slack

    def _solve(self, end: int) -> None:
        stages, part = self.stages, self.stages.ending_at(end)
        chosen = np.flatnonzero(stages.height_s[part] <= self.high_s[-1]) + part.start
        if not len(chosen):
            return
        first, height_s = stages.first[chosen], stages.height_s[chosen, None]
        too_high = np.where(height_s <= self.high_s, 0.0, np.inf)
        both_s, slack = self._own(chosen)
        early_s = (both_s + stages.get_s[chosen])[:, None] + too_high
        late_s = (both_s + stages.sync_s[chosen])[:, None] - slack
        priced = (stages.usd_per_s[chosen, None] * self.prices)[:, None, :]
        # what is in front of a peak has one behind it; of higher ones nothing counts
        peak, cell = np.nonzero((height_s >= self.low_s) & (height_s <= self.high_s))
        for kind in (NO_PEAK, PEAK):

            def before(values: Array, kind: int = kind) -> Array:
                gathered: Array = values[first, kind]
                if kind == NO_PEAK:
                    gathered[peak, cell] = values[first[peak], PEAK, cell]
                return gathered

            ends_s = before(self.ends_s)
            ends_s += early_s[..., None]
            if stages.num_replicas > 1:
                ahead_s = before(self.ahead_s)
                least = late_s if kind == NO_PEAK else late_s + slack
                np.maximum(ends_s, ahead_s + least[..., None], out=ends_s)
                ahead_s += (stages.ahead_s[chosen, None] + too_high)[..., None]
                ahead_s += priced
                self.ahead_s[end, kind] = ahead_s.min(axis=0)
            ends_s += priced
            best = ends_s.argmin(axis=0)
            self.ends_s[end, kind] = np.take_along_axis(ends_s, best[None], axis=0)[0]
            self.choice[end, kind] = chosen[best]
        rate = self.least_rate[first] + stages.usd_per_s[chosen, None] + too_high
        self.least_rate[end] = rate.min(axis=0)

    def roots(self, aim: Aim) -> Array:
        """[cell, corner]: bounds of whole pipelines; under a time limit, the last corner is where it cuts."""
        shift_s = self.stages.laps * self.low_s
        everything = (slice(None),)
        return _corners(aim, self.stages.num_replicas, self.whole, self.prices, everything, shift_s, 0 * shift_s)

    def of(self, labels: Labels, aim: Aim, below: float) -> Array:
        """A lower bound for everything that each of the half-built pipelines can become; not the closest where a
        simpler one is not below what counts."""
        num_replicas = self.stages.num_replicas
        least_rate = labels.rate + self.least_rate_at[labels.first]
        found = aim.value(self.fastest_s(labels), least_rate, num_replicas)
        rows = np.flatnonzero(found < below)
        found[rows] = self._whoever_ends_last_in_front(labels[rows], aim)
        if num_replicas > 1:  # or the stage that ends last is behind: what is in front adds forwards only
            rows = np.flatnonzero(found < below)
            some = labels[rows]
            ended_s = some.ended_s + self.stages.laps * some.ahead_s
            found[rows] = np.maximum(found[rows], self._least(some, aim, self.forward, self._places(some)[0], ended_s))
        return found

    def _whoever_ends_last_in_front(self, labels: Labels, aim: Aim) -> Array:
        cell, is_peak, own_s = self._places(labels)
        found = self._least(labels, aim, self.higher, cell + is_peak, labels.both_s)
        rows = np.flatnonzero(is_peak)
        own = self._least(labels[rows], aim, self.own, cell[rows], own_s[rows])
        found[rows] = np.minimum(found[rows], own)
        return found

    def _least(self, labels: Labels, aim: Aim, envelope: Envelope, cells: Ints, shift_s: Array) -> Array:
        at = (labels.first, cells)
        corners = _corners(aim, self.stages.num_replicas, envelope, self.prices, at, shift_s, labels.rate)
        found: Array = corners.min(axis=-1)
        return found

    def fastest_s(self, labels: Labels) -> Array:
        """What each of them takes at least, at any rate; for ever where it is higher than all cells."""
        cell, is_peak, own_s = self._places(labels)
        own = np.where(is_peak, own_s + self.own.lines[labels.first, cell, 0], np.inf)
        higher = labels.both_s + self.higher.lines[labels.first, cell + is_peak, 0]
        found: Array = np.where(labels.height_s > self.high_s[-1], NEVER_S, np.minimum(own, higher))
        return np.minimum(found, NEVER_S)

    def _places(self, labels: Labels) -> tuple[Ints, NDArray[np.bool_], Array]:
        """The cell that each is in or below, whether it is in it, and its time so far if it gets no higher."""
        cell = np.minimum(np.searchsorted(self.high_s, labels.height_s), len(self.high_s) - 1)
        slowest = np.maximum(labels.ahead_s + labels.back_s, self.low_s[cell])
        return cell, labels.height_s >= self.low_s[cell], labels.both_s + self.stages.laps * slowest


def _corners(
    aim: Aim,
    num_replicas: int,
    envelope: Envelope,
    prices: Array,
    at: tuple[Ints | slice, ...],
    shift_s: Array,
    rate: Array,
) -> Array:
    """The aim at every corner, for so much time and rate more than the envelope's."""
    time_s = shift_s[:, None] + envelope.time_s[at]
    values = aim.value(time_s, rate[:, None] + envelope.rate[at], num_replicas)
    if not np.isfinite(aim.limit_s):
        return values
    # time falls with the rate: the least rate that keeps the limit is one more corner
    lines = shift_s[:, None] + envelope.lines[at]
    is_open = lines[:, 0] < aim.limit_s
    excess = np.where(is_open[:, None], lines - aim.limit_s, 0.0)[:, 1:] / prices[1:]
    needed = excess.max(axis=-1, initial=0.0)
    cut = aim.limit_s * (aim.usd * num_replicas * (rate + needed) + aim.s)
    return np.concatenate([values, np.where(is_open, cut, np.inf)[:, None]], axis=-1)


def _least_from(values: Array) -> Array:
    """Over a cell and all higher ones."""
    least: Array = np.minimum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
    return least


def _padded(values: Array) -> Array:
    """With one more cell, in which there is nothing."""
    return np.concatenate([values, np.full_like(values[:, :1], np.inf)], axis=1)
