"""The order in which a search takes its candidates: the most promising first."""

import heapq
from collections.abc import Iterable, Sequence

from zooid.planner.drafts import Draft
from zooid.planner.families import Family
from zooid.planner.lots import Lot
from zooid.planner.objectives import Objective

ENDS: tuple[Objective, ...] = (lambda run_s, run_usd: run_s, lambda run_s, run_usd: run_usd)
"""The objectives of both ends of a front, which a hurried search of the whole front looks at by turns."""
_MIXED_LATER = 4.0
"""Factor on the value of mixed plans before any of them is made."""
_Key = tuple[float, int, int, int]


class Queue:
    """Candidates in the order of their promise for an objective, or for several objectives by turns."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._heaps: list[list[tuple[tuple[float, int, int, int], int, Lot | Family | Draft]]] = [
            [] for _ in objectives
        ]
        self._taken: set[int] = set()
        self._num_offered = self._num_taken = 0

    def offer(self, candidates: Iterable[Lot | Family | Draft]) -> None:
        for candidate in candidates:
            for heap, objective in zip(self._heaps, self._objectives, strict=True):
                heapq.heappush(heap, (self._key(candidate, objective), self._num_offered, candidate))
            self._num_offered += 1

    @staticmethod
    def _key(candidate: Lot | Family | Draft, objective: Objective) -> _Key:
        """The promise. Bounds of mixed plans are looser, and other plans may prune them."""
        value, num_members, memory_bytes, grain_size = promise(candidate, objective)
        is_mixed = isinstance(candidate, Lot) and candidate.num_kinds > 1
        return _MIXED_LATER * value if is_mixed else value, num_members, memory_bytes, grain_size

    def take(self) -> Lot | Family | Draft | None:
        """Return the next candidate; None if none is left."""
        heap = self._heaps[self._num_taken % len(self._heaps)]
        while heap:
            _, number, candidate = heapq.heappop(heap)
            if number not in self._taken:
                self._taken.add(number)
                self._num_taken += 1
                return candidate
        return None


def promise(candidate: Lot | Family | Draft, objective: Objective) -> tuple[float, int, int, int]:
    """Sort key of the lower bound. Ties go to fewer members, less memory, and smaller grains.

    Small grains divide more evenly among members that come and go.
    """
    plan = candidate.plan
    memory_bytes = sum(stage.memory_bytes for stage in plan.stages)
    return objective(*candidate.lower_bound), plan.num_members, memory_bytes, plan.grain_size
