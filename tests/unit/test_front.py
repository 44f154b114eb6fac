"""Time against money: which points are kept, which is recommended, which a pair of weights picks."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import InputError
from zooid.planner.front import best_weighted, pareto, recommended, worth


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


@settings(max_examples=100, deadline=None, derandomize=True)
@given(points, st.integers(0, 5), st.integers(1, 5))
def test_every_pair_of_weights_picks_from_the_front(given: list[At], usd: int, s: int) -> None:
    found = best_weighted(given, usd, s)
    assert usd * found.usd + s * found.time_s == min(usd * point.usd + s * point.time_s for point in given)
    assert usd == 0 or found in pareto(given)


def test_no_points_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        recommended([])
    with pytest.raises(InputError, match="at least one"):
        best_weighted([], 1, 1)
