"""The order of samples in shards, and the shards to fetch ahead of reading.

A permutation of all samples would need every shard from the first step on. Instead the shards are put in random order,
and samples are shuffled within windows of a few consecutive shards. So a step needs the shards of a window or two.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from zooid.core.errors import ScheduleError
from zooid.core.runs.shard import SHARDS_PER_WINDOW

_GRAINS_PER_LOOK = 16
"""Number of further grains to look at in each read; a limit avoids pauses where windows have very many grains."""


def windowed_order(generator: np.random.Generator, shard_sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """A permutation of all samples in which each window of shards is contiguous."""
    ends = np.cumsum(np.asarray(shard_sizes, dtype=np.int64))
    shards = generator.permutation(len(shard_sizes))
    windows = []
    for first in range(0, len(shards), SHARDS_PER_WINDOW):
        window = shards[first : first + SHARDS_PER_WINDOW]
        samples = [np.arange(ends[shard] - shard_sizes[shard], ends[shard]) for shard in window]
        windows.append(generator.permutation(np.concatenate(samples)))
    return np.concatenate(windows)


class ShardsAhead:
    """Predicts the shards that a member will need next.

    It looks ahead in `upcoming`, the samples of each grain in reading order, until it has seen as many unread shards as
    a window has, and no further.
    """

    def __init__(self, shard_sizes: Sequence[int], upcoming: Iterable[Sequence[int]]) -> None:
        self._ends = np.cumsum(np.asarray(shard_sizes, dtype=np.int64))
        self._upcoming = iter(upcoming)
        self._num_read = 0
        self._num_seen = 0
        self._needed: dict[int, tuple[int, int]] = {}
        """The first and last grain seen so far that need a shard, for shards that are still needed."""

    def read(self) -> list[int]:
        """Count one more grain as read, and return the shards newly known to be needed, in order of need."""
        new_shards: list[int] = []
        num_looks = 0
        while self._num_seen <= self._num_read or (num_looks < _GRAINS_PER_LOOK and not self._has_enough):
            grain = next(self._upcoming, None)
            if grain is None:
                break
            num_looks += 1
            for shard in np.unique(np.searchsorted(self._ends, grain, side="right")).tolist():
                first, _ = self._needed.get(shard, (self._num_seen, 0))
                if shard not in self._needed:
                    new_shards.append(shard)
                self._needed[shard] = (first, self._num_seen)
            self._num_seen += 1
        self._num_read += 1
        self._needed = {shard: seen for shard, seen in self._needed.items() if seen[1] >= self._num_read}
        return new_shards

    @property
    def _has_enough(self) -> bool:
        """Whether a window of shards ahead of reading is known, or all shards are."""
        num_ahead = sum(first > self._num_read for first, _ in self._needed.values())
        return num_ahead >= SHARDS_PER_WINDOW or len(self._needed) == len(self._ends)


def check_sizes(shard_sizes: Sequence[int], num_samples: int) -> None:
    """Reject sizes of shards that do not sum to the data set."""
    if shard_sizes and (min(shard_sizes) < 0 or sum(shard_sizes) != num_samples):
        raise ScheduleError(
            f"the shard_sizes sum to {sum(shard_sizes)} samples, but the data set has {num_samples}; give the number "
            "of samples of each shard, 0 or more, in the order of the samples"
        )
