"""What an all-reduce takes where a library does it, learned from samples of it (Srifty §4.1 to 4.3).

Our own all-reduces are lists of messages, which are simulated. Gloo's and NCCL's are not ours to list, and follow
placement, buffers and versions that nobody can see; `zooid probe --only all-reduce` measures them, and this fits them:
bus bandwidth over bytes, members and how many are under way, as median with a low and a high quantile. Small messages,
where latency rules, and large ones are fitted apart. Every offer at every site is fitted by itself, for what was
measured on one says nothing of another. Fitting takes a few seconds and comes out the same each time, so that samples
are what is kept in files, and no fitted model.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.all_reduce_samples import AllReduceSample, Library
from zooid.core.units import format_bytes, format_duration
from zooid.predictor.learned.hull import Hull
from zooid.predictor.learned.spread import Rows, SpreadModel

AllReduceTime: TypeAlias = Callable[[int, int], float]
"""Seconds of an all-reduce of so many bytes (first) among so many members (second)."""

SMALL_BYTES = 2**20
"""Messages up to here are fitted apart from larger ones."""
HALF_LIFE_S = 7 * 24 * 3600.0
"""A sample of a week ago counts half as much as one of now: networks change."""
_MAX_HALF_LIVES = 6
"""Samples that are older are left out: they count next to nothing beside newer ones, and yet what nobody has measured
since would pass for measured."""
_OVERLAP = 2
"""Either part also learns from the other one's messages up to this factor beyond the border, so that it has samples on
both sides of whatever it is asked for."""
LEAST_SAMPLES = 20
LEAST_SETTINGS = 5


class Place(NamedTuple):
    """Members that are alike."""

    offer: str
    site: str

    def __str__(self) -> str:
        return f"{self.offer} at {self.site}"


@dataclass(frozen=True)
class AllReduceEstimate:
    """What one of the all-reduces that are under way takes, from when all begin until all are done."""

    median_s: float
    low_s: float
    """One of ten is faster."""
    high_s: float
    """One of ten is slower."""
    beyond: str = ""
    """In what it lies outside of what was measured, in words; empty where it lies between samples."""

    @property
    def is_extrapolated(self) -> bool:
        return bool(self.beyond)


class LearnedAllReduce:
    """The all-reduces of one library, at the places where they were measured. Made by `fit_all_reduce`."""

    def __init__(self, library: Library, fits: "dict[Place, _Fit]") -> None:
        self.library = library
        self._fits = fits

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(self._fits)

    def predict(
        self, num_bytes: int, num_members: int, concurrency: int = 1, places: Sequence[Place] | None = None
    ) -> AllReduceEstimate:
        """What it takes where members are at these places; where they are mixed, the slowest governs.

        Outside of what was measured at a place, by a factor of up to 2 in bytes, members or concurrency, the estimate
        says so; further out it is refused with a PlanError.
        """
        if num_bytes < 1 or num_members < 1 or concurrency < 1:
            raise PlanError(
                f"an all-reduce of {num_bytes} byte(s) among {num_members} member(s), {concurrency} at once, is asked "
                "for; give numbers from 1 on"
            )
        chosen = [self._fit_at(place) for place in self._known(places)]
        if num_members == 1:
            return AllReduceEstimate(0.0, 0.0, 0.0)
        each = [fit.predict(num_bytes, num_members, concurrency) for fit in chosen]
        return AllReduceEstimate(
            median_s=max(estimate.median_s for estimate in each),
            low_s=max(estimate.low_s for estimate in each),
            high_s=max(estimate.high_s for estimate in each),
            beyond="; ".join(estimate.beyond for estimate in each if estimate.beyond),
        )

    def time_of(
        self, concurrency: int = 1, places: Sequence[Place] | None = None, *, may_extrapolate: bool = False
    ) -> AllReduceTime:
        """The median as a plain function, for the simulator. A number cannot say that it is extrapolated, so that such
        are refused here, unless told otherwise."""
        known = self._known(places)

        def time_s(num_bytes: int, num_members: int) -> float:
            estimate = self.predict(num_bytes, num_members, concurrency, known)
            if estimate.is_extrapolated and not may_extrapolate:
                raise PlanError(f"{estimate.beyond}; measure that, too, with zooid probe --only all-reduce")
            return estimate.median_s

        return time_s

    def _known(self, places: Sequence[Place] | None) -> Sequence[Place]:
        if places is None and len(self._fits) > 1:
            raise PlanError(f"samples are of {self._places_in_words()}; say at which of them members are")
        if places is not None and not places:
            raise PlanError(f"no place is given; samples are of {self._places_in_words()}")
        return tuple(self._fits) if places is None else tuple(dict.fromkeys(places))

    def _fit_at(self, place: Place) -> "_Fit":
        if place not in self._fits:
            raise PlanError(
                f"there are no samples of {self.library} on {place}, but of {self._places_in_words()}; measure there, "
                "with zooid probe --only all-reduce"
            )
        return self._fits[place]

    def _places_in_words(self) -> str:
        return ", ".join(map(str, self._fits))


def fit_all_reduce(
    samples: Iterable[AllReduceSample],
    now_s: float,
    *,
    library: Library | None = None,
    half_life_s: float = HALF_LIFE_S,
) -> LearnedAllReduce:
    """Learn what a library's all-reduces take; a sample counts half as much after each half-life.

    `library` has to be said where samples are of several.
    """
    chosen = [sample for sample in samples if library in (None, sample.library)]
    libraries = sorted({sample.library for sample in chosen})
    if len(libraries) > 1:
        raise PlanError(f"samples are of {' and '.join(libraries)}; say which of them to learn")
    if not chosen:
        raise PlanError(f"there are no samples of {library or 'a library'}; zooid probe --only all-reduce takes some")
    if not 0 < half_life_s < math.inf:
        raise PlanError(f"the half-life is {half_life_s:g} s; it must be above 0")
    by_place: defaultdict[Place, list[AllReduceSample]] = defaultdict(list)
    for sample in chosen:
        by_place[Place(sample.offer, sample.site)].append(sample)
    fits = {place: _Fit(place, by_place[place], now_s, half_life_s) for place in sorted(by_place)}
    return LearnedAllReduce(chosen[0].library, fits)


class _Fit:
    """One place: where it was measured, and a model for small and one for large messages."""

    def __init__(self, place: Place, samples: Sequence[AllReduceSample], now_s: float, half_life_s: float) -> None:
        self._place = place
        oldest_s = now_s - _MAX_HALF_LIVES * half_life_s
        # in an order of their own, for trees take them as they come, and joined files have any order
        used = sorted(
            (sample for sample in samples if sample.at_s >= oldest_s),
            key=lambda sample: (sample.num_bytes, sample.num_members, sample.concurrency, sample.took_s, sample.at_s),
        )
        settings = {(sample.num_bytes, sample.num_members, sample.concurrency) for sample in used}
        if len(used) < LEAST_SAMPLES or len(settings) < LEAST_SETTINGS:
            raise PlanError(
                f"there are {len(used)} sample(s) in {len(settings)} setting(s) of {samples[0].library} on {place} of "
                f"the last {format_duration(now_s - oldest_s)}; at least {LEAST_SAMPLES} in {LEAST_SETTINGS} are "
                "needed: measure more sizes, or repeat them more often"
            )
        self._hull = Hull(settings)
        rows = _rows(used, now_s, half_life_s)
        small = rows.those(rows.num_bytes <= SMALL_BYTES * _OVERLAP)
        large = rows.those(rows.num_bytes >= SMALL_BYTES / _OVERLAP)
        parts = (small, large) if _is_enough(small) and _is_enough(large) else (rows,)
        models = [SpreadModel(part) for part in parts]
        self._small, self._large = models[0], models[-1]

    def predict(self, num_bytes: int, num_members: int, concurrency: int) -> AllReduceEstimate:
        beyond = self._hull.beyond(num_bytes, num_members, concurrency)
        what = (
            f"an all-reduce of {format_bytes(num_bytes)} among {num_members} members, {concurrency} at once, on "
            f"{self._place} is outside of what was measured: {beyond.reason}"
        )
        if beyond.is_far:
            raise PlanError(f"{what}; measure that, too, with zooid probe --only all-reduce")
        model = self._small if num_bytes <= SMALL_BYTES else self._large
        low_s, median_s, high_s = model.times_s(num_bytes, num_members, concurrency)
        return AllReduceEstimate(median_s, low_s, high_s, what if beyond.reason else "")


def _is_enough(part: Rows) -> bool:
    return len(part) >= LEAST_SAMPLES and len(set(part.settings)) >= LEAST_SETTINGS


def _rows(samples: Sequence[AllReduceSample], now_s: float, half_life_s: float) -> Rows:
    """Columns of samples, weighed by age; one that a machine with a fast clock took may be of later than now."""
    weights = np.array([0.5 ** (max(0.0, now_s - sample.at_s) / half_life_s) for sample in samples])
    return Rows(
        num_bytes=np.array([float(sample.num_bytes) for sample in samples]),
        num_members=np.array([float(sample.num_members) for sample in samples]),
        concurrency=np.array([float(sample.concurrency) for sample in samples]),
        took_s=np.array([sample.took_s for sample in samples]),
        weights=weights / weights.mean(),
    )
