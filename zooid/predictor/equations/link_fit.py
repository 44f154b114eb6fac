"""What a link carries and takes: a line through probes, and links that several share."""

import numpy as np
from numpy.typing import ArrayLike

from zooid.core.errors import InputError
from zooid.core.records import Record, require
from zooid.predictor.equations.array_checks import Array, above_zero, at_least


class LinkFit(Record, frozen=True, kw_only=True):
    """Hydrozoa's α and β (§3.4): what a message takes beyond its bytes at the link's bandwidth."""

    s_per_byte: float = 0.0
    """α: copying and serialising."""
    s_per_message: float = 0.0
    """β: latency and whatever else a message costs, however small."""

    def __post_init__(self) -> None:
        for name in ("s_per_byte", "s_per_message"):
            value = getattr(self, name)
            require(0 <= value < float("inf"), f"`{name}` is {value}; it must be at least 0")

    def message_s(self, num_bytes: ArrayLike, bytes_per_s: ArrayLike = np.inf) -> Array:
        """b/D + αb + β."""
        size = at_least(0, "num_bytes", num_bytes)
        return size / above_zero("bytes_per_s", bytes_per_s) + self.s_per_byte * size + self.s_per_message


def fit_link(num_bytes: ArrayLike, times_s: ArrayLike, bytes_per_s: ArrayLike = np.inf) -> LinkFit:
    """α and β from probes, messages of several sizes and their times, by linear regression (Hydrozoa §3.4).

    `bytes_per_s` is D, where it is known; without it, α has all that a byte takes. Errors count in proportion to the
    time that was measured: sizes span many powers of ten, and the largest alone would decide. Neither α nor β is
    below 0: of all such lines, the nearest.

    >>> found = fit_link([1e3, 1e6, 1e8], [0.0101, 0.11, 10.01])
    >>> f"{found.s_per_byte:.2g} s for a byte, {found.s_per_message:.2g} s for a message"
    '1e-07 s for a byte, 0.01 s for a message'
    """
    sizes, times = at_least(0, "num_bytes", num_bytes), above_zero("times_s", times_s)
    if sizes.shape != times.shape or sizes.ndim != 1 or len(set(sizes.tolist())) < 2:
        raise InputError(
            f"a link cannot be fitted to {sizes.size} size(s) and {times.size} time(s); probe it with messages of at "
            "least two sizes, one time each"
        )
    rest = times - sizes / above_zero("bytes_per_s", bytes_per_s)
    scale = sizes.max()  # bytes and messages differ by many powers of ten, in which a solver would lose digits
    columns = np.stack([sizes / scale, np.ones_like(sizes)], axis=1) / times[:, None]
    wanted = rest / times
    both = np.linalg.lstsq(columns, wanted)[0]
    if (both < 0).any():  # the nearest line without negative parts has one of them 0
        alone = [max(0.0, float(column @ wanted / (column @ column))) for column in columns.T]
        lines = [np.array([alone[0], 0.0]), np.array([0.0, alone[1]])]
        both = min(lines, key=lambda line: float(np.sum((columns @ line - wanted) ** 2)))
    return LinkFit(s_per_byte=float(both[0] / scale), s_per_message=float(both[1]))


def shared_bytes_per_s(num_sharing: ArrayLike, own_bytes_per_s: ArrayLike, total_bytes_per_s: ArrayLike) -> Array:
    """What each of several gets: min(r, C/k).

    Streams of one link carry at most their own rate each and its capacity together (clouds and continents §7:
    Tables 5 to 7 are rates of single streams); members of one store as well (FuncPipe §5.7: 10 Gbit/s for all).

    >>> streams = [1, 20, 80]  # across the Atlantic, in Mbit/s
    >>> (streams * shared_bytes_per_s(streams, 210, 6200)).tolist()
    [210.0, 4200.0, 6200.0]
    """
    number = at_least(1, "num_sharing", num_sharing)
    own = above_zero("own_bytes_per_s", own_bytes_per_s)
    return np.minimum(own, above_zero("total_bytes_per_s", total_bytes_per_s) / number)
