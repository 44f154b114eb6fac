"""Lower bounds of the time and cost of fleets, some of whose counts may still be open.

They hold for each number n of members: at most the n fastest members compute, at least the n cheapest are paid, and the
types that are certain exchange among n. No member computes more grains a second than at its best share, so that the
compute time C is at least grains / Σ rates.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from zooid.planner.fleets.arrays import FleetArrays
from zooid.planner.front import Ints, Mask
from zooid.predictor.equations.array_checks import Array

_BELOW = 1 - 1e-11
"""The factor that keeps bounds below values that are summed in another order."""


@dataclass(frozen=True, eq=False)
class KnownTotals:
    """Sums over the types whose counts are known, one for each fleet or branch."""

    members: Ints
    min_grains: Ints
    max_grains: Ints
    grains_per_s: Array
    usd_per_s: Array
    lost_fraction: Array
    min_compute_s: Array
    """The compute time of the smallest share on the slowest type, below which no split of the batch goes."""

    @classmethod
    def of(cls, arrays: FleetArrays, counts: Ints) -> "KnownTotals":
        members = counts * arrays.num_gpus
        return cls(
            members=members.sum(axis=1),
            min_grains=(members * arrays.min_grains).sum(axis=1),
            max_grains=(members * arrays.max_grains).sum(axis=1),
            grains_per_s=(members * arrays.grains_per_s).sum(axis=1),
            usd_per_s=(counts * arrays.usd_per_s).sum(axis=1),
            lost_fraction=(counts * arrays.lost_fraction).sum(axis=1),
            min_compute_s=np.where(counts > 0, arrays.min_compute_s, 0.0).max(axis=1),
        )

    def plus(self, other: "KnownTotals") -> "KnownTotals":
        """Return the totals of fleets that have the machines of both."""
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name != "min_compute_s"
        }
        return KnownTotals(**sums, min_compute_s=np.maximum(self.min_compute_s, other.min_compute_s))

    def take(self, rows: Ints) -> "KnownTotals":
        return KnownTotals(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def compute_s(self, num_grains: int) -> Array:
        return np.maximum(num_grains / self.grains_per_s, self.min_compute_s)


@dataclass(frozen=True, eq=False)
class OpenTypes:
    """What types whose counts are open can add at best, as arrays over their number of members."""

    grains_per_s: Array
    """The throughput of the fastest members."""
    usd_per_s: Array
    """The price of the cheapest members."""
    max_grains: int
    """The largest number of grains that all of their members can hold."""
    min_compute_s: float
    all_reduce_s: Array
    """The time of the type with the fastest all-reduce."""

    @classmethod
    def of(cls, arrays: FleetArrays, kinds: tuple[int, ...]) -> "OpenTypes":
        index = np.array(kinds, np.int64)
        members = (arrays.quota * arrays.num_gpus)[index]
        rates = np.sort(np.repeat(arrays.grains_per_s[index], members))[::-1]
        prices = np.sort(np.repeat((arrays.usd_per_s / arrays.num_gpus)[index], members))
        max_members = arrays.problem.num_grains
        all_reduce_s = np.full(arrays.all_reduce_s.shape[1], math.inf)
        for kind in kinds:
            num_gpus = int(arrays.num_gpus[kind])
            all_reduce_s[num_gpus:] = np.minimum(all_reduce_s[num_gpus:], arrays.all_reduce_s[kind][num_gpus:])
        return cls(
            grains_per_s=np.concatenate([[0.0], np.cumsum(rates[:max_members])]),
            usd_per_s=np.concatenate([[0.0], np.cumsum(prices[:max_members])]),
            max_grains=int(np.sum(members * arrays.max_grains[index])),
            min_compute_s=float(np.min(arrays.min_compute_s[index], initial=math.inf)),
            all_reduce_s=all_reduce_s,
        )


def branch_bounds(
    arrays: FleetArrays, branches: Ints, known_kinds: tuple[int, ...], rest: OpenTypes
) -> tuple[Array, Array, Mask]:
    """Return bounds of time and cost as [branch, open members], and whether fleets of so many members can exist."""
    known = KnownTotals.of(arrays, branches)
    members = known.members[:, None] + np.arange(len(rest.grains_per_s))
    exists = (members >= 1) & (members < len(arrays.wait_factor))
    members = np.where(exists, members, 1)
    is_open = known.members[:, None] == 0
    with np.errstate(divide="ignore"):
        compute_s = arrays.problem.num_grains / (known.grains_per_s[:, None] + rest.grains_per_s)
    compute_s = np.maximum(compute_s, np.where(is_open, rest.min_compute_s, known.min_compute_s[:, None]))
    exchange_s = np.where(is_open, rest.all_reduce_s[members], 0.0)
    for kind in known_kinds:
        is_present = branches[:, kind, None] > 0
        exchange_s = np.maximum(exchange_s, np.where(is_present, arrays.all_reduce_s[kind][members], 0.0))
    exists &= np.isfinite(compute_s) & np.isfinite(exchange_s)
    compute_s, exchange_s = np.where(exists, compute_s, 0.0), np.where(exists, exchange_s, 0.0)
    run_s = _BELOW * arrays.run_s(arrays.step_s(compute_s, members, exchange_s), known.lost_fraction[:, None])
    return run_s, _BELOW * run_s * (known.usd_per_s[:, None] + rest.usd_per_s), exists


def compute_bounds(arrays: FleetArrays, totals: KnownTotals) -> tuple[Array, Array]:
    """Return bounds of time and cost from computing alone, which are the fastest to evaluate."""
    compute_s = totals.compute_s(arrays.problem.num_grains)
    step_s = arrays.step_s(compute_s, totals.members, np.zeros(len(compute_s)))
    run_s = _BELOW * arrays.run_s(step_s, totals.lost_fraction)
    return run_s, _BELOW * run_s * totals.usd_per_s


def fleet_bounds(arrays: FleetArrays, counts: Ints) -> tuple[Array, Array]:
    """Return bounds of time and cost of fleets whose counts are all known; only the split of the batch is open."""
    times = arrays.evaluate(counts, KnownTotals.of(arrays, counts).compute_s(arrays.problem.num_grains))
    return _BELOW * times.run_s, _BELOW * times.usd
