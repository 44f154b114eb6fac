"""Bandwidths and round trips of links, fitted so that members wait as long in a simulated step as in measured ones.

Unknown are the logarithms of the factors on the bandwidth of each link, and on the round trip of each pair of sites.
There are six kinds of residuals:

- Each beginning of a computation: (simulated − measured) / step. Those of a member count as one, by their mean square.
- Each kind of message of a member through a store: ln(simulated time / measured time), weighted by the square root of
  its fraction of the step.
- Each all-reduce of a member, likewise. Members that join it at different times see different parts of it, which tells
  their links apart.
- The step: ln(simulated time / measured time).
- Each unknown: a small fraction of itself. So what the steps do not tell stays as it was known before. Messages of a
  single size, for example, do not tell a longer round trip from a lower bandwidth.
- Both directions of a link: a fraction of the difference of their bandwidth factors. An all-reduce does not tell which
  direction is slower than known.

The simulator follows the members' rules of sharing and polling, so it does not matter which messages share a link. The
least squares are found by the algorithm of Levenberg and Marquardt.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from zooid.core.resources.link import STORE_SITE, Link
from zooid.predictor.learned.measured_step import MeasuredStep, Seat

Ends = tuple[str, str]
"""The sites from which and to which a link leads."""
Numbers = NDArray[np.float64]

_RESOLUTION_S = 1e-4
"""Threads wake up this late, so shorter times say nothing."""
_MIN_RTT_S = 1e-5
"""A round trip that was taken for none begins here, since a factor of zero changes nothing."""
_PRIOR = 0.003
"""A bandwidth that is wrong by a factor of e weighs as much as a step that is wrong by this fraction."""
_RTT_PRIOR = 0.01
"""The same for round trips, which are known better: a probe of them needs only a few small messages. Factors above e
weigh much more, by the third power of their logarithm. Otherwise the time of a slow link is often divided into a round
trip that is 50 times as long and a faster link."""
_SYMMETRY = 0.05
"""The same for bandwidths that change by a factor of e in one direction only. It is larger, so that a cause that
explains both directions is preferred. Messages that cross a link in one direction outweigh it."""
_PERTURBATION = 0.02
_MAX_MOVE = 1.5
"""The largest change of a logarithm at once, a factor of about 4.5."""
_MAX_ROUNDS = 10
_DAMPINGS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_CONVERGED = 1e-4
_GAIN = 0.02
"""The search ends when a round reduces the sum of squares by less than this fraction."""
_GOOD = 1e-4
"""A sum of squares that is good enough: about one hundredth of the step."""
_SLOWER = 0.5
"""Factor on all bandwidths from which the search begins again. A link that hides behind computing needs it."""


@dataclass(frozen=True)
class LinkFactors:
    """Factors on the bandwidths and on the round trips of some links."""

    ends: tuple[Ends, ...]
    logs: tuple[float, ...]
    """Logarithms of the bandwidth factors of all links, then of the round-trip factors of all pairs of sites."""

    @classmethod
    def none(cls, ends: Sequence[Ends]) -> "LinkFactors":
        return cls(tuple(ends), (0.0,) * (len(ends) + len(_pairs(ends))))

    def alike(self, factor: float) -> "LinkFactors":
        """Make all bandwidths higher by this factor, and all round trips shorter."""
        log, num_links = math.log(factor), len(self.ends)
        return self.moved(np.array([log] * num_links + [-log] * (len(self.logs) - num_links)))

    def moved(self, change: Numbers) -> "LinkFactors":
        return LinkFactors(self.ends, tuple(float(log + move) for log, move in zip(self.logs, change, strict=True)))

    def applied_to(self, links: Sequence[Link]) -> tuple[Link, ...]:
        """Scale all measurements of these links; other links stay as they are."""
        rtt_logs = dict(zip(_pairs(self.ends), self.logs[len(self.ends) :], strict=True))
        factors: Mapping[Ends, tuple[float, float]] = {
            ends: (math.exp(log), math.exp(rtt_logs[frozenset(ends)]))
            for ends, log in zip(self.ends, self.logs, strict=False)
        }
        return tuple(_scaled(link, *factors.get((link.from_site, link.to_site), (1.0, 1.0))) for link in links)


def capped(links: Sequence[Link], factors: LinkFactors) -> tuple[Link, ...]:
    """Scale the fitted links. Other links become slower by as much as the interface of a site that they share.

    The fastest of its links shows how fast the interface of a site is. That it is faster than known says nothing about
    links that were not used.
    """
    fitted = set(factors.ends)
    scaled = factors.applied_to(links)
    interfaces: dict[tuple[int, str], float] = {}
    for end in (0, 1):
        for site in {ends[end] for ends in fitted} - {STORE_SITE}:
            own = [(link, new) for link, new in zip(links, scaled, strict=True) if _ends(link) in fitted]
            rates = [
                (link.bandwidth_bytes_per_s, new.bandwidth_bytes_per_s) for link, new in own if _ends(link)[end] == site
            ]
            interfaces[end, site] = max(new for _, new in rates) / max(known for known, _ in rates)
    return tuple(
        new
        if _ends(link) in fitted
        else _scaled(link, min(1.0, *(interfaces.get((end, _ends(link)[end]), 1.0) for end in (0, 1))), 1.0)
        for link, new in zip(links, scaled, strict=True)
    )


def _ends(link: Link) -> Ends:
    return link.from_site, link.to_site


def _pairs(ends: Sequence[Ends]) -> list[frozenset[str]]:
    """Pairs of sites. A round trip is the same in both directions."""
    return list(dict.fromkeys(map(frozenset, ends)))


def _scaled(link: Link, bandwidth_factor: float, rtt_factor: float) -> Link:
    if bandwidth_factor == rtt_factor == 1.0:
        return link
    stream = link.stream_bytes_per_s
    return structs.replace(
        link,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * bandwidth_factor,
        stream_bytes_per_s=None if stream is None else stream * bandwidth_factor,
        rtt_s=max(link.rtt_s, _MIN_RTT_S) * rtt_factor,
    )


def fit_links(
    start: LinkFactors, measured: MeasuredStep, simulate: Callable[[LinkFactors], MeasuredStep]
) -> LinkFactors:
    """Find the factors with which a simulated step is most like the measured one.

    The search begins with the given factors and, if that leads to no good end, once more with slower links.
    """
    if not start.ends:
        return start
    fit = _Fit(measured, simulate)
    found, cost = fit.run(start)
    if cost > _GOOD:
        other, other_cost = fit.run(start.alike(_SLOWER))
        found = other if other_cost < cost else found
    return found


class _Fit:
    def __init__(self, measured: MeasuredStep, simulate: Callable[[LinkFactors], MeasuredStep]) -> None:
        self._measured = measured
        self._simulate = simulate

    def run(self, factors: LinkFactors) -> tuple[LinkFactors, float]:
        """Search from these factors, and return the best ones with their sum of squares."""
        here = self._residuals(factors)
        for _ in range(_MAX_ROUNDS):
            jacobian = self._jacobian(factors)
            information = jacobian.T @ jacobian
            for damping in _DAMPINGS:
                damped = information + damping * np.diag(information.diagonal())
                move = np.clip(np.linalg.solve(damped, -jacobian.T @ here), -_MAX_MOVE, _MAX_MOVE)
                there = self._residuals(factors.moved(move))
                if there @ there < here @ here:
                    break
            else:
                break
            has_converged = np.abs(move).max() < _CONVERGED or there @ there > (1 - _GAIN) * (here @ here)
            factors, here = factors.moved(move), there
            if has_converged:
                break
        return factors, float(here @ here)

    def _residuals(self, factors: LinkFactors) -> Numbers:
        step, measured = self._simulate(factors), self._measured
        of_starts = [
            (step.starts_s[seat][action] - start_s) / measured.step_s / len(starts_s) ** 0.5
            for seat, starts_s in measured.starts_s.items()
            for action, start_s in starts_s.items()
            if action in step.starts_s[seat]
        ]
        of_messages = [
            (measured_s * _num_grains(measured, seat) / measured.step_s) ** 0.5
            * _log_ratio(step.messages_s[seat, kind], measured_s)
            for (seat, kind), measured_s in measured.messages_s.items()
            if (seat, kind) in step.messages_s
        ]
        of_reduces = [
            (measured_s / measured.step_s) ** 0.5 * _log_ratio(step.reduces_s[key], measured_s)
            for key, measured_s in measured.reduces_s.items()
            if key in step.reduces_s
        ]
        num_links = len(factors.ends)
        of_unknowns = [_PRIOR * log for log in factors.logs[:num_links]]
        of_unknowns += [_RTT_PRIOR * (log + log**3) for log in factors.logs[num_links:]]
        logs = dict(zip(factors.ends, factors.logs, strict=False))
        of_unknowns += [_SYMMETRY * (logs[a, b] - logs[b, a]) for a, b in factors.ends if a < b and (b, a) in logs]
        return np.array([*of_starts, *of_messages, *of_reduces, _log_ratio(step.step_s, measured.step_s), *of_unknowns])

    def _jacobian(self, factors: LinkFactors) -> Numbers:
        """Differences in both directions: of two links that are equally slow, only one that becomes slower matters."""
        columns = []
        for number in range(len(factors.logs)):
            change = np.zeros(len(factors.logs))
            change[number] = _PERTURBATION
            difference = self._residuals(factors.moved(change)) - self._residuals(factors.moved(-change))
            columns.append(difference / (2 * _PERTURBATION))
        return np.column_stack(columns)


def _log_ratio(simulated_s: float, measured_s: float) -> float:
    return math.log((simulated_s + _RESOLUTION_S) / (measured_s + _RESOLUTION_S))


def _num_grains(step: MeasuredStep, seat: Seat) -> int:
    """Number of grains of a member, each of which has one message of a kind."""
    return max(1, len(step.starts_s[seat]) // 2)  # a forward and a backward of each, and the commit
