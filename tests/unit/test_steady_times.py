"""Times on a busy machine follow those of a quiet one, and single outliers do not count."""

import pytest

from zooid.core.plans.profile import TimePoint
from zooid.profiler.grain_times import steadied


def points(*seconds: float) -> list[TimePoint]:
    """A point for 1, 2, 4, … samples; a backward takes twice as long as a forward."""
    return [
        TimePoint(num_samples=2**index, forward_s=forward_s, backward_s=2 * forward_s)
        for index, forward_s in enumerate(seconds)
    ]


def test_an_outlier_between_two_sizes_does_not_count() -> None:
    steady = steadied(points(1.0, 2.0, 4.0, 8.0), points(1.1, 2.2, 0.1, 8.8))
    assert [point.forward_s for point in steady] == pytest.approx([1.1, 2.2, 4.4, 8.8])
    assert [point.backward_s for point in steady] == pytest.approx([2.2, 4.4, 8.8, 17.6])


def test_a_slowdown_that_grows_with_the_size_stays() -> None:
    quiet, busy = points(1.0, 2.0, 4.0, 8.0, 16.0), points(1.0, 2.2, 4.8, 10.4, 22.4)
    assert [point.forward_s for point in steadied(quiet, busy)[1:-1]] == pytest.approx([2.2, 4.8, 10.4])


def test_sizes_that_were_not_measured_with_neighbours_are_left_out() -> None:
    assert steadied(points(1.0, 2.0, 4.0), points(1.5, 3.0)) == tuple(points(1.5, 3.0))
    assert steadied(points(1.0, 2.0), points(1.5, 3.0, 6.0)) == tuple(points(1.5, 3.0))
    assert steadied(points(1.0), []) == ()
    assert steadied(points(0.0), points(0.0)) == tuple(points(0.0))
