"""The order of samples that lie in shards, and which shards to fetch while others are read.

A permutation of all samples would need every shard from the first step on. Instead the shards are put in random order,
and samples are shuffled within windows of a few consecutive ones: still every sample once, and a step needs the shards
of a window or two.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from zooid.core.errors import ScheduleError
from zooid.core.runs.shard import SHARDS_PER_WINDOW

_GRAINS_PER_LOOK = 16
"""How much further the look ahead goes at each read, until it has found enough: never a pause, even where a window has
hundreds of thousands of grains."""


def windowed_order(generator: np.random.Generator, shard_sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """A permutation of all samples in which every window of shards is a run."""
    ends = np.cumsum(np.asarray(shard_sizes, dtype=np.int64))
    shards = generator.permutation(len(shard_sizes))
    windows = []
    for at in range(0, len(shards), SHARDS_PER_WINDOW):
        own = [np.arange(ends[n] - shard_sizes[n], ends[n]) for n in shards[at : at + SHARDS_PER_WINDOW]]
        windows.append(generator.permutation(np.concatenate(own)))
    return np.concatenate(windows)


class ShardsAhead:
    """Follows one member through its grains, and says which shards it will need next.

    It looks ahead in `upcoming`, the samples of each grain in the order in which they will be read, until it has seen a
    window's worth of shards that reading has not reached yet, and no further.
    """

    def __init__(self, shard_sizes: Sequence[int], upcoming: Iterable[Sequence[int]]) -> None:
        self._ends = np.cumsum(np.asarray(shard_sizes, dtype=np.int64))
        self._upcoming = iter(upcoming)
        self._num_read = 0
        self._num_seen = 0
        self._needed: dict[int, tuple[int, int]] = {}
        """By shard, the first and the last grain seen so far that needs it, of those that are not read yet."""

    def read(self) -> list[int]:
        """The next grain is being read: shards that are now known to be needed, in that order."""
        found: list[int] = []
        num_looks = 0
        while self._num_seen <= self._num_read or (num_looks < _GRAINS_PER_LOOK and not self._has_enough):
            grain = next(self._upcoming, None)
            if grain is None:
                break
            num_looks += 1
            for shard in np.unique(np.searchsorted(self._ends, grain, side="right")).tolist():
                first, _ = self._needed.get(shard, (self._num_seen, 0))
                if shard not in self._needed:
                    found.append(shard)
                self._needed[shard] = (first, self._num_seen)
            self._num_seen += 1
        self._num_read += 1
        self._needed = {shard: seen for shard, seen in self._needed.items() if seen[1] >= self._num_read}
        return found

    @property
    def _has_enough(self) -> bool:
        """A window ahead of reading is known, or all shards are."""
        num_ahead = sum(first > self._num_read for first, _ in self._needed.values())
        return num_ahead >= SHARDS_PER_WINDOW or len(self._needed) == len(self._ends)


def check_sizes(shard_sizes: Sequence[int], num_samples: int) -> None:
    """Refuse sizes of shards that are not those of the data set."""
    if shard_sizes and (min(shard_sizes) < 0 or sum(shard_sizes) != num_samples):
        raise ScheduleError(
            f"the data set's shard_sizes are of {sum(shard_sizes)} samples, but it has {num_samples}; shard_sizes are "
            "the numbers of samples of each shard, 0 or more, in the order of the samples"
        )
