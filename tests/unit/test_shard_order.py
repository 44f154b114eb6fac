"""The order of samples that lie in shards, and the look ahead to the shards that come next."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import ScheduleError
from zooid.core.runs.shard import SHARDS_PER_WINDOW
from zooid.schedule.samples import SamplePlan, split_grains
from zooid.schedule.shard_order import ShardsAhead

quick = settings(max_examples=60, deadline=None)


def plan_of(shard_sizes: Sequence[int], *, batch_size: int = 8, epochs: int = 2, seed: int = 0) -> SamplePlan:
    return SamplePlan(
        num_samples=sum(shard_sizes),
        batch_size=batch_size,
        grain_size=min(3, batch_size),
        epochs=epochs,
        seed=seed,
        shard_sizes=tuple(shard_sizes),
    )


def shards_of(shard_sizes: Sequence[int], indices: Sequence[int]) -> list[int]:
    return [int(shard) for shard in np.searchsorted(np.cumsum(shard_sizes), indices, side="right")]


sizes = st.lists(st.integers(0, 12), min_size=1, max_size=30).filter(lambda found: sum(found) > 0)


@quick
@given(sizes, st.integers(0, 3), st.integers(0, 1))
def test_an_epoch_is_a_permutation_of_all_samples(shard_sizes: list[int], seed: int, epoch: int) -> None:
    order = plan_of(shard_sizes, seed=seed).order(epoch)
    assert sorted(order.tolist()) == list(range(sum(shard_sizes)))


@quick
@given(sizes, st.integers(0, 3))
def test_a_window_of_shards_is_read_before_the_next_begins(shard_sizes: list[int], seed: int) -> None:
    order = plan_of(shard_sizes, seed=seed).order(0)
    in_order = shards_of(shard_sizes, order.tolist())
    open_shards: set[int] = set()
    left = dict(enumerate(shard_sizes))
    for shard in in_order:
        open_shards.add(shard)
        left[shard] -= 1
        if not left[shard]:
            open_shards.remove(shard)
        assert len(open_shards) <= SHARDS_PER_WINDOW


@quick
@given(st.integers(5, 40), st.integers(1, 9), st.integers(0, 3))
def test_a_step_needs_the_shards_of_two_windows_at_most(num_shards: int, batch_size: int, seed: int) -> None:
    """Of many more that there are: otherwise every member would fetch all of them at once."""
    shard_sizes = [3] * num_shards
    plan = plan_of(shard_sizes, batch_size=min(batch_size, SHARDS_PER_WINDOW * 3), seed=seed)
    for step in range(plan.num_steps // plan.epochs):
        own = np.concatenate(plan.grains(step)).tolist()
        assert len(set(shards_of(shard_sizes, own))) <= 2 * SHARDS_PER_WINDOW


def test_samples_are_shuffled_across_shards_and_differently_each_epoch() -> None:
    shard_sizes = [100] * 12
    plan = plan_of(shard_sizes)
    first, second = plan.order(0).tolist(), plan.order(1).tolist()
    assert first != second
    assert list(dict.fromkeys(shards_of(shard_sizes, first))) != list(range(12))
    assert len(set(shards_of(shard_sizes, first[:20]))) == SHARDS_PER_WINDOW, "mixed from the first step on"
    assert replace(plan, seed=1).order(0).tolist() != first
    assert replace(plan, batch_size=5).order(0).tolist() == first, "whoever computes"


def test_the_order_of_samples_in_shards_does_not_change_between_versions() -> None:
    assert plan_of([2, 3, 1, 2, 2, 2], seed=7).order(0).tolist() == [1, 8, 2, 3, 4, 11, 0, 9, 10, 5, 6, 7]


@pytest.mark.parametrize("shard_sizes", [(5, 4), (12, -2)])
def test_sizes_that_are_not_those_of_the_data_are_refused(shard_sizes: tuple[int, ...]) -> None:
    with pytest.raises(ScheduleError, match=f"shard_sizes sum to {sum(shard_sizes)} samples, but the data set has 10"):
        SamplePlan(num_samples=10, batch_size=2, grain_size=2, epochs=1, seed=0, shard_sizes=shard_sizes)


@quick
@given(sizes, st.integers(1, 3), st.integers(0, 2), st.data())
def test_shards_are_announced_in_time_and_never_far_ahead(
    shard_sizes: list[int], num_replicas: int, seed: int, data: st.DataObject
) -> None:
    plan = plan_of(shard_sizes, seed=seed, epochs=3)
    replica = data.draw(st.integers(0, num_replicas - 1))
    grains = [
        plan.grains(step)[number].tolist()
        for step in range(plan.num_steps)
        for number in split_grains(plan.num_grains(step), (1,) * num_replicas)[replica]
    ]
    ahead = ShardsAhead(shard_sizes, iter(grains))
    waiting: set[int] = set()
    cached: set[int] = set()
    for grain in grains:
        found = ahead.read()
        cached |= set(found)
        needed = set(shards_of(shard_sizes, grain))
        assert needed <= cached
        waiting = (waiting | set(found)) - needed
        assert len(waiting) < SHARDS_PER_WINDOW + plan.grain_size, "a window, and what its last grain brought with it"


def test_the_next_window_is_announced_while_one_is_read() -> None:
    shard_sizes = [30] * (3 * SHARDS_PER_WINDOW)
    plan = plan_of(shard_sizes, epochs=1)
    order = plan.order(0).tolist()
    windows = np.array_split(np.array(list(dict.fromkeys(shards_of(shard_sizes, order)))), 3)
    ahead = ShardsAhead(shard_sizes, iter([[index] for index in order]))
    announced: set[int] = set()
    for at in range(30 * SHARDS_PER_WINDOW):
        announced |= set(ahead.read())
        if at == 29:
            assert announced == {*windows[0].tolist(), *windows[1].tolist()}, "a quarter of the window is read"
    assert announced == {*windows[0].tolist(), *windows[1].tolist()}, "and not the one after next"


def test_every_epoch_announces_every_shard_anew() -> None:
    """In a cache that is smaller than the data set, they are gone by then."""
    shard_sizes = [6] * (10 * SHARDS_PER_WINDOW)
    plan = plan_of(shard_sizes, epochs=4)
    grains = [grain.tolist() for step in range(plan.num_steps) for grain in plan.grains(step)]
    ahead = ShardsAhead(shard_sizes, iter(grains))
    announced = [shard for _ in grains for shard in ahead.read()]
    # Only those that the next epoch begins with while this one still reads them are not announced again.
    assert 4 * len(shard_sizes) - 3 * 2 * SHARDS_PER_WINDOW <= len(announced) <= 4 * len(shard_sizes)
