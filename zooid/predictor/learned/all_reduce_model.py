"""Times of a library's all-reduces, learned from measured samples (Srifty §4.1 to 4.3).

zooid's own all-reduces are transfer lists, which the simulator times. Those of Gloo and NCCL are not: they depend on
placement, buffers and versions that nobody can see. `zooid probe --only all-reduce` measures them, and this module fits
their bus bandwidth over bytes, members and concurrency, as a median with a low and a high quantile.

Small messages, where latency dominates, and large ones are fitted separately. So is every offer at every site, because
samples of one say nothing about another. A fit takes a few seconds and is deterministic; files therefore hold samples,
and no fitted model.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zooid.core.errors import PlanError
from zooid.core.plans.all_reduce_samples import AllReduceSample, Library
from zooid.core.units import format_bytes, format_duration
from zooid.predictor.learned.hull import Hull
from zooid.predictor.learned.spread import Rows, SpreadModel

SMALL_BYTES = 2**20
"""Messages up to this size are fitted separately from larger ones."""
HALF_LIFE_S = 7 * 24 * 3600.0
"""A sample from a week ago has half the weight of one from now, because networks change."""
_MAX_HALF_LIVES = 6
"""Samples that are older are ignored. They weigh almost nothing, yet they would make a setting count as measured."""
_OVERLAP = 2
"""Each of the two models also learns from messages up to this factor beyond SMALL_BYTES, so that it has samples on both
sides of any size that it predicts."""
_MIN_SAMPLES = 20
_MIN_SETTINGS = 5


class MemberKind(NamedTuple):
    """Members on the same offer at the same site."""

    offer: str
    site: str

    def __str__(self) -> str:
        return f"{self.offer} at {self.site}"


@dataclass(frozen=True)
class AllReduceEstimate:
    """Predicted time of one of several concurrent all-reduces, from their common start until all have ended."""

    median_s: float
    low_s: float
    """The time below which one of ten all-reduces ends."""
    high_s: float
    """The time above which one of ten all-reduces ends."""
    beyond: str = ""
    """How the setting lies outside the measured range, in words; empty where it lies inside."""

    @property
    def is_extrapolated(self) -> bool:
        return bool(self.beyond)


class LearnedAllReduce:
    """The all-reduces of one library, on the kinds of members that were measured; made by `fit_all_reduce`."""

    def __init__(self, library: Library, fits: "dict[MemberKind, _KindFit]") -> None:
        self.library = library
        self._fits = fits

    def predict(
        self, num_bytes: int, num_members: int, concurrency: int = 1, kinds: Sequence[MemberKind] | None = None
    ) -> AllReduceEstimate:
        """Predict an all-reduce among members of these kinds; in a mixed fleet the slowest kind decides.

        An estimate outside the measured range by a factor of up to 2 in bytes, members or concurrency says so. Farther
        out it is a PlanError.
        """
        if num_bytes < 1 or num_members < 1 or concurrency < 1:
            raise PlanError(
                f"an all-reduce of {num_bytes} byte(s) among {num_members} member(s), {concurrency} at once, is asked "
                "for; give numbers from 1 on"
            )
        fits = self._fits_of(kinds)
        if num_members == 1:
            return AllReduceEstimate(0.0, 0.0, 0.0)
        estimates = [fit.predict(num_bytes, num_members, concurrency) for fit in fits]
        return AllReduceEstimate(
            median_s=max(estimate.median_s for estimate in estimates),
            low_s=max(estimate.low_s for estimate in estimates),
            high_s=max(estimate.high_s for estimate in estimates),
            beyond="; ".join(estimate.beyond for estimate in estimates if estimate.beyond),
        )

    def _fits_of(self, kinds: Sequence[MemberKind] | None) -> "list[_KindFit]":
        measured = ", ".join(map(str, self._fits))
        chosen = tuple(self._fits) if kinds is None else tuple(dict.fromkeys(kinds))
        if not chosen or (kinds is None and len(chosen) > 1):
            raise PlanError(f"samples are of {measured}; say on which of them members run")
        for kind in chosen:
            if kind not in self._fits:
                raise PlanError(
                    f"there are no samples of {self.library} on {kind}, only on {measured}; measure there with zooid "
                    "probe --only all-reduce"
                )
        return [self._fits[kind] for kind in chosen]


def fit_all_reduce(
    samples: Iterable[AllReduceSample],
    now_s: float,
    *,
    library: Library | None = None,
    half_life_s: float = HALF_LIFE_S,
) -> LearnedAllReduce:
    """Learn the times of a library's all-reduces; the weight of a sample halves with each half-life.

    `library` is needed only if the samples are of several libraries.
    """
    chosen = [sample for sample in samples if library in (None, sample.library)]
    libraries = sorted({sample.library for sample in chosen})
    if len(libraries) > 1:
        raise PlanError(f"samples are of {' and '.join(libraries)}; name the one to learn")
    if not chosen:
        raise PlanError(f"there are no samples of {library or 'a library'}; run zooid probe --only all-reduce")
    if not 0 < half_life_s < math.inf:
        raise PlanError(f"the half-life is {half_life_s:g} s; it must be above 0")
    by_kind: defaultdict[MemberKind, list[AllReduceSample]] = defaultdict(list)
    for sample in chosen:
        by_kind[MemberKind(sample.offer, sample.site)].append(sample)
    fits = {kind: _KindFit(kind, by_kind[kind], now_s, half_life_s) for kind in sorted(by_kind)}
    return LearnedAllReduce(chosen[0].library, fits)


class _KindFit:
    """The fit of one kind of member: its measured range, a model for small messages, and one for large ones."""

    def __init__(self, kind: MemberKind, samples: Sequence[AllReduceSample], now_s: float, half_life_s: float) -> None:
        self._kind = kind
        oldest_s = now_s - _MAX_HALF_LIVES * half_life_s
        # sorted, because trees depend on the order of samples, which differs between joined files
        used = sorted(
            (sample for sample in samples if sample.at_s >= oldest_s),
            key=lambda sample: (sample.num_bytes, sample.num_members, sample.concurrency, sample.took_s, sample.at_s),
        )
        settings = {(sample.num_bytes, sample.num_members, sample.concurrency) for sample in used}
        if len(used) < _MIN_SAMPLES or len(settings) < _MIN_SETTINGS:
            raise PlanError(
                f"there are {len(used)} sample(s) in {len(settings)} setting(s) of {samples[0].library} on {kind} of "
                f"the last {format_duration(now_s - oldest_s)}; at least {_MIN_SAMPLES} in {_MIN_SETTINGS} are "
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
        explanation = (
            f"an all-reduce of {format_bytes(num_bytes)} among {num_members} members, {concurrency} at once, on "
            f"{self._kind} is outside the measured range: {beyond.reason}"
        )
        if beyond.is_far:
            raise PlanError(f"{explanation}; measure this setting with zooid probe --only all-reduce")
        model = self._small if num_bytes <= SMALL_BYTES else self._large
        low_s, median_s, high_s = model.times_s(num_bytes, num_members, concurrency)
        return AllReduceEstimate(median_s, low_s, high_s, explanation if beyond.reason else "")


def _is_enough(part: Rows) -> bool:
    return len(part) >= _MIN_SAMPLES and len(set(part.settings)) >= _MIN_SETTINGS


def _rows(samples: Sequence[AllReduceSample], now_s: float, half_life_s: float) -> Rows:
    """Samples as columns, weighted by age; a sample from a machine with a fast clock may lie in the future."""
    weights = np.array([0.5 ** (max(0.0, now_s - sample.at_s) / half_life_s) for sample in samples])
    return Rows(
        num_bytes=np.array([float(sample.num_bytes) for sample in samples]),
        num_members=np.array([float(sample.num_members) for sample in samples]),
        concurrency=np.array([float(sample.concurrency) for sample in samples]),
        took_s=np.array([sample.took_s for sample in samples]),
        weights=weights / weights.mean(),
    )
