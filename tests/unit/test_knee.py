"""The knee is found where it is, whatever the sizes that were probed; and where there is none, a line says so."""

import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zooid.profiler import knee as fitting
from zooid.profiler.knee import knee, one_line, two_lines

SIZES = (2, 4, 8, 16, 32, 64)
probed = st.lists(st.integers(1, 512), min_size=4, max_size=8, unique=True).map(sorted)


@st.composite
def hinges(draw: st.DrawFn) -> tuple[list[tuple[int, float]], float]:
    """Points on two lines that meet between the first and the last size, and where; the second is far steeper."""
    sizes = draw(probed)
    bend = draw(st.floats(sizes[0], sizes[-1]))
    fixed_s = draw(st.floats(1e-4, 1.0))
    slope = fixed_s / bend * draw(st.floats(0.0, 1.0))
    steeper = fixed_s / bend * draw(st.floats(0.5, 10.0))
    return [(size, fixed_s + slope * size + steeper * max(0.0, size - bend)) for size in sizes], bend


@given(hinges())
def test_the_knee_is_within_the_gap_between_two_probed_sizes_in_which_it_is(
    hinge: tuple[list[tuple[int, float]], float],
) -> None:
    points, bend = hinge
    sizes = [size for size, _ in points]
    assume(one_line(points).error > 0.051)
    below = max((size for size in sizes if size < bend), default=sizes[0])  # at a size, both gaps beside it are meant
    above = min((size for size in sizes if size > bend), default=sizes[-1])
    assert below <= knee(points, largest_grain=sizes[-1]) <= above
    assert two_lines(points).error == pytest.approx(0.0, abs=1e-6)


@given(probed, st.floats(1e-4, 10.0), st.floats(1e-6, 1.0), st.integers(0, 1000))
def test_on_one_line_it_is_where_the_time_has_doubled(
    sizes: list[int], fixed_s: float, s_per_sample: float, seed: int
) -> None:
    """However the times are off by a few percent, as long as one line describes them; and never out of bounds."""
    exact = [(size, fixed_s + s_per_sample * size) for size in sizes]
    expected = min(max(1, round(fixed_s / s_per_sample)), sizes[-1])
    assert knee(exact, sizes[-1]) == pytest.approx(expected, abs=1.0)
    noise = random.Random(seed)
    assert 1 <= knee([(size, time_s * noise.uniform(0.97, 1.03)) for size, time_s in exact], sizes[-1]) <= sizes[-1]


@pytest.mark.parametrize("bend", [3, 4, 6, 8, 12, 16, 24, 32])
def test_a_sharp_knee_is_found_to_the_sample_also_in_noise(bend: int) -> None:
    noise = random.Random(1)
    assert knee([(size, 1e-3 * max(size, bend)) for size in SIZES], 64) == bend
    disturbed = [(size, 1e-3 * max(size, bend) * noise.uniform(0.99, 1.01)) for size in SIZES]
    assert knee(disturbed, 64) == pytest.approx(bend, rel=0.2)


def test_a_bend_that_a_line_describes_well_enough_is_none() -> None:
    """From 1.0 to 1.1 seconds a sample: the line counts, and it has hardly a fixed part."""
    points = [(size, 0.1 + size + 0.1 * max(0, size - 16)) for size in SIZES]
    assert one_line(points).error < 0.05
    assert two_lines(points).error == pytest.approx(0.0, abs=1e-9)
    assert knee(points, 64) == 1


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(16, 0.5)], 16),
        ([(1, 1.1), (64, 7.4)], 10),
        ([(1, 0.1), (64, 6.4)], 1),
        ([(1, 1.0), (64, 1.0)], 64),
        ([(1, 1.1), (32, 4.2), (64, 7.4)], 10),
        ([(2, 3.0), (4, 2.0), (8, 2.5), (16, 2.2)], 64),
        ([(2, 1.0), (4, 8.0), (8, 22.0), (16, 50.0)], 2),
    ],
    ids=["one size", "two sizes", "in proportion", "flat", "three sizes", "falling", "from below zero"],
)
def test_few_or_odd_points_have_a_knee_too(points: list[tuple[int, float]], expected: int) -> None:
    assert knee(points, largest_grain=64) == expected


def test_no_other_place_to_meet_would_be_better() -> None:
    """Against a close grid of places, each with its best lines."""
    noise = random.Random(7)
    for _ in range(20):
        points = [(size, noise.uniform(0.2, 2.0) * size ** noise.uniform(0.0, 1.2)) for size in SIZES]
        grid = [fitting._fit(points, bend).error for bend in np.linspace(SIZES[0], SIZES[-1], 200)]
        found = two_lines(points)
        assert found.error <= min(grid) + 1e-9
        assert min(found.fixed_s, found.s_per_sample, found.more_s_per_sample) >= 0
