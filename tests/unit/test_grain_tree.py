"""A sum over grains along the tree has the same bits, however grains are dealt out and in whatever order they come."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from zooid.schedule.grain_tree import TreeSum, maximal_nodes, most_nodes_held, sibling_of
from zooid.worker.gradients import loss_sums


def values(num_grains: int) -> list[Tensor]:
    """Numbers of very different size, so that every other order of additions shows."""
    generator = torch.Generator().manual_seed(num_grains)
    return [torch.randn(50, generator=generator) * 10.0 ** (grain % 5) for grain in range(num_grains)]


def tree_sum(num_grains: int) -> TreeSum[Tensor]:
    return TreeSum(num_grains, torch.Tensor.add_)


def one_by_one(grains: Sequence[int], num_grains: int) -> TreeSum[Tensor]:
    tree = tree_sum(num_grains)
    of_grains = values(num_grains)
    for grain in grains:
        tree.put_grain(grain, of_grains[grain].clone())
    return tree


def by_halves(first: int, end: int, of_grains: Sequence[Tensor]) -> Tensor:
    """What the tree means, in other words: the left part is the largest power of two that is smaller than the whole."""
    if end - first == 1:
        return of_grains[first]
    half = 1
    while half * 2 < end - first:
        half *= 2
    return by_halves(first, first + half, of_grains) + by_halves(first + half, end, of_grains)


@given(num_grains=st.integers(1, 40), num_replicas=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_any_deal_and_any_order_give_the_same_bits(num_grains: int, num_replicas: int, seed: int) -> None:
    shuffled = random.Random(seed)
    grains = list(range(num_grains))
    shuffled.shuffle(grains)
    owners = [shuffled.randrange(num_replicas) for _ in grains]
    replicas = [
        one_by_one([grain for grain, owner in zip(grains, owners, strict=True) if owner == replica], num_grains)
        for replica in range(num_replicas)
    ]
    parts = [part for replica in replicas for part in replica.nodes.items()]
    shuffled.shuffle(parts)
    whole = tree_sum(num_grains)
    for node, value in parts:
        whole.put(node, value)
    assert torch.equal(whole.total, by_halves(0, num_grains, values(num_grains)))


@given(num_grains=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_maximal_nodes_are_what_a_replica_ends_with(num_grains: int, seed: int) -> None:
    shuffled = random.Random(seed)
    grains = shuffled.sample(range(num_grains), shuffled.randint(0, num_grains))
    nodes = maximal_nodes(sorted(grains), num_grains)
    assert list(nodes) == [node for node, _ in one_by_one(grains, num_grains).in_order()]
    assert sorted(grains) == [grain for first, end in nodes for grain in range(first, end)]
    assert not any(sibling_of(node, num_grains) in nodes for node in nodes)


def test_a_plain_sum_has_other_bits() -> None:
    """Otherwise the tests above could not fail."""
    of_grains = values(7)
    plain = of_grains[0].clone()
    for value in of_grains[1:]:
        plain += value
    assert not torch.equal(plain, one_by_one(range(7), 7).total)


@pytest.mark.parametrize(
    ("grains", "num_grains", "most"),
    [(range(8), 8, 4), (range(4), 8, 3), (range(1), 8, 1), (range(1, 7), 8, 4), ((), 3, 0)],
)
def test_few_values_are_kept(grains: Sequence[int], num_grains: int, most: int) -> None:
    assert most_nodes_held(grains, num_grains) == most


def test_losses_are_added_up_by_the_same_tree() -> None:
    for num_grains in range(1, 20):
        of_grains = [value[:2].double() for value in values(num_grains)]
        assert torch.equal(loss_sums.total(torch.stack(of_grains)), by_halves(0, num_grains, of_grains))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_losses_travel_exactly(dtype: torch.dtype) -> None:
    losses = torch.tensor([[1 / 3, 4.0], [float("nan"), 2.0], [-1e300, 7.0]], dtype=torch.float64)
    total = torch.zeros(0)
    for own in (0, 1, 2):
        slots = loss_sums.slots_for(5, torch.zeros(1, dtype=dtype))
        loss_sums.fill(slots, torch.where(torch.arange(3)[:, None] == own, losses, 0.0))
        total = slots.clone() if own == 0 else total + slots
    found = loss_sums.read(total, num_grains=3)
    assert torch.equal(found.view(torch.int64), losses.view(torch.int64))
