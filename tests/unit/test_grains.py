"""The largest that fits is found with few tries, and is what trying every size would find."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import InputError
from zooid.planner.grains import doubled_while_fitting, grain_choices, largest_fitting

thorough = settings(max_examples=300, deadline=None, derandomize=True)


@thorough
@given(st.integers(0, 5000), st.integers(1, 4000))
def test_the_largest_is_that_of_a_linear_scan(capacity: int, most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= capacity

    assert largest_fitting(fits, most) == max([size for size in range(1, most + 1) if size <= capacity], default=0)
    assert all(1 <= size <= most for size in tried)
    assert len(tried) == len(set(tried)) <= 2 * most.bit_length()


@thorough
@given(st.integers(0, 300), st.integers(1, 100), st.integers(1, 200))
def test_grains_are_those_of_trying_every_size_and_number(memory: int, weights: int, most_samples: int) -> None:
    """A member keeps its weights, every sample, and something for every grain."""

    def fits(grain_size: int, num_grains: int) -> bool:
        return weights + num_grains * (grain_size + 2) <= memory

    tried = {
        size: max([count for count in range(1, most_samples // size + 1) if fits(size, count)], default=0)
        for size in (2**power for power in range(9))
    }
    found = {choice.grain_size: choice.num_grains for choice in grain_choices(fits, most_samples)}
    assert found == {size: count for size, count in tried.items() if count}


@pytest.mark.parametrize("search", [largest_fitting, doubled_while_fitting])
def test_no_sizes_to_look_at_are_refused(search: object) -> None:
    assert callable(search)
    with pytest.raises(InputError, match="sizes up to 0 are asked for; the largest that is looked at must be at least"):
        search(lambda size: True, 0)
