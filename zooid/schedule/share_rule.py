"""Shares that follow the measured speed of replicas, so that none waits for a slower one."""

import statistics
from collections.abc import Sequence

_MIN_GAIN = 0.07
"""Shares change if that makes the longest replica shorter by this fraction."""
_MIN_GAIN_S = 0.02
"""Shares change if that makes the longest replica shorter by this time. A change itself takes some milliseconds."""
_NUM_SURE_STEPS, _SURE_GAIN, _ALIKE = 2, 0.2, 1.15
"""So many steps suffice for a gain of this fraction, if no pace in them is longer than another by more than this
factor. A replica must then be half as slow again as the others, which hardly happens twice by chance."""


def balanced_shares(paces: Sequence[float], num_grains: int) -> tuple[int, ...]:
    """The number of grains of each replica with which the last one ends first.

    `paces` are the seconds that each replica needs for a grain. Every replica keeps at least one grain, so that its
    speed stays known.

    >>> balanced_shares((1.0, 2.0), 12)
    (8, 4)
    """
    shares = [1] * len(paces)
    for _ in range(num_grains - len(paces)):
        fastest = min(range(len(paces)), key=lambda replica: ((shares[replica] + 1) * paces[replica], replica))
        shares[fastest] += 1
    return tuple(shares)


def better_shares(paces: Sequence[float], shares: Sequence[int], min_gain: float = _MIN_GAIN) -> tuple[int, ...] | None:
    """The shares that fit these paces; None if a step would not become clearly shorter, or if a pace is unknown."""
    num_grains = sum(shares)
    if len(paces) < 2 or min(paces) <= 0 or num_grains < len(paces):
        return None
    better = balanced_shares(paces, num_grains)
    now_s, then_s = (max(map(lambda share, pace: share * pace, split, paces)) for split in (shares, better))
    return better if now_s - then_s > max(min_gain * now_s, _MIN_GAIN_S) else None


class PaceWatch:
    """The paces of the last steps, from which new shares follow."""

    def __init__(self, num_steps: int = 4) -> None:
        self._num_steps = num_steps
        self._paces: list[tuple[float, ...]] = []

    def note(self, paces: tuple[float, ...]) -> None:
        """Note the paces of a step; they are forgotten when one of them is unknown."""
        self._paces = [*self._paces[1 - self._num_steps :], paces] if min(paces, default=0.0) > 0 else []

    def better_than(self, shares: Sequence[int]) -> tuple[int, ...] | None:
        """Better shares, if the last two steps agree on a large gain, or all of the last steps show a clear one."""
        if (sure := self._surely_better_than(shares)) is not None:
            return sure
        if len(self._paces) < self._num_steps:
            return None
        if any(better_shares(paces, shares) is None for paces in self._paces):
            return None
        middle = [sorted(column)[len(column) // 2] for column in zip(*self._paces, strict=True)]
        return better_shares(middle, shares)

    def _surely_better_than(self, shares: Sequence[int]) -> tuple[int, ...] | None:
        last = [*zip(*self._paces[-_NUM_SURE_STEPS:], strict=True)]
        if len(self._paces) < _NUM_SURE_STEPS or any(max(column) > _ALIKE * min(column) for column in last):
            return None
        return better_shares([statistics.fmean(column) for column in last], shares, _SURE_GAIN)
