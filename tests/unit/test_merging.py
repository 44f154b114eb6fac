"""Merged layers: runs of layers whose heaviest is as light as any way of merging allows."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.profiles import layer, profile
from zooid.core.errors import InputError
from zooid.planner.merging import balanced_spans, merge_layers


@given(st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9), st.integers(1, 5))
def test_no_way_of_merging_has_a_lighter_heaviest_group(weights: list[float], num_groups: int) -> None:
    spans = balanced_spans(weights, num_groups)
    assert [0, *(end for _, end in spans)] == [*(first for first, _ in spans), len(weights)]
    assert len(spans) <= num_groups
    least = min(
        max(sum(weights[a:b]) for a, b in pairwise((0, *cuts, len(weights))))
        for number in range(min(num_groups, len(weights)))
        for cuts in combinations(range(1, len(weights)), number)
    )
    assert max(sum(weights[a:b]) for a, b in spans) == pytest.approx(least)


def test_each_criterion_has_its_own_groups() -> None:
    layers = [layer(9, parameter_bytes=1), layer(1, parameter_bytes=9), layer(1, parameter_bytes=1), layer(1)]
    made = profile(layers)
    assert merge_layers(made, 2, "time") == [(0, 1), (1, 4)]
    assert merge_layers(made, 2, "parameters") in ([(0, 1), (1, 4)], [(0, 2), (2, 4)])
    assert merge_layers(made, 2, "activations") == [(0, 2), (2, 4)]


def test_what_cannot_be_merged_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        merge_layers(profile([layer(1)]), 0)
    with pytest.raises(InputError, match="time, parameters, activations"):
        merge_layers(profile([layer(1)]), 1, "colour")  # type: ignore[arg-type]
