"""Time against money: which points are kept, and which is recommended."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import InputError
from zooid.planner.front import RunningFront, pareto, recommended, worth


class At(NamedTuple):
    time_s: float
    usd: float


points = st.lists(st.builds(At, st.integers(1, 12).map(float), st.integers(1, 12).map(float)), min_size=1, max_size=12)


def is_beaten(point: At, by: At) -> bool:
    return by.time_s <= point.time_s and by.usd <= point.usd and by != point


@settings(max_examples=300, deadline=None, derandomize=True)
@given(points)
def test_the_front_is_all_that_nothing_beats_from_the_fastest_to_the_cheapest(given: list[At]) -> None:
    wanted = sorted({point for point in given if not any(is_beaten(point, other) for other in given)})
    assert pareto(given) == wanted


@settings(max_examples=300, deadline=None, derandomize=True)
@given(points, st.floats(0.1, 2))
def test_what_is_recommended_is_worth_its_cost_and_nothing_faster_is(given: list[At], least: float) -> None:
    front = pareto(given)
    cheapest = min(given, key=lambda point: (point.usd, point.time_s))
    found = recommended(given, least)
    assert found == cheapest or worth(found, cheapest) >= least
    assert all(worth(point, cheapest) < least for point in front if point.time_s < found.time_s)


def test_funcpipes_threshold_takes_speed_that_pays_and_leaves_speed_that_does_not() -> None:
    cheapest, pays, hurries = At(10, 1.0), At(5, 2.0), At(4.9, 2.5)
    assert worth(pays, cheapest) == pytest.approx(1.0)
    assert worth(hurries, cheapest) < 0.8
    assert recommended([hurries, cheapest, pays]) == pays
    assert recommended([cheapest, hurries]) == cheapest
    assert recommended([At(10, 0.0), At(5, 1.0)]) == At(10, 0.0), "nothing is worth a price where the other is free"


def test_costs_that_differ_in_their_last_digits_are_one_point() -> None:
    assert pareto([At(1, 1.0), At(2, 1.0 - 1e-15)], tolerance=1e-12) == [At(1, 1.0)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(points, max_size=4))
def test_a_front_that_grows_is_the_front_of_all_that_was_added(batches: list[list[At]]) -> None:
    front = RunningFront(1)
    for batch in batches:
        times, costs = np.array(batch).T
        front.add(np.arange(len(batch))[:, None], times, costs)
    every = [point for batch in batches for point in batch]
    assert list(zip(front.time_s, front.usd, strict=True)) == pareto(every)
    assert len(front.rows) == len(pareto(every))
    assert not every or not front.can_improve(*np.array(every).T).any()


def test_no_points_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        recommended([])
