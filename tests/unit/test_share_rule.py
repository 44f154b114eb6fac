"""Shares that follow measured paces are the best ones, and change only for a clear gain."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.schedule.share_rule import PaceWatch, balanced_shares, better_shares


def splits(num_grains: int, num_replicas: int) -> list[tuple[int, ...]]:
    """All ways to give every replica at least one grain."""
    return [
        shares
        for shares in itertools.product(range(1, num_grains + 1), repeat=num_replicas)
        if sum(shares) == num_grains
    ]


def longest_s(shares: tuple[int, ...], paces: list[float]) -> float:
    return max(share * pace for share, pace in zip(shares, paces, strict=True))


@settings(max_examples=200, deadline=None)
@given(paces=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=3), extra=st.integers(0, 6))
def test_no_split_ends_earlier(paces: list[float], extra: int) -> None:
    num_grains = len(paces) + extra
    found = balanced_shares(paces, num_grains)
    assert sum(found) == num_grains
    best_s = min(longest_s(shares, paces) for shares in splits(num_grains, len(paces)))
    assert longest_s(found, paces) == pytest.approx(best_s)


@pytest.mark.parametrize(
    ("paces", "shares", "better"),
    [
        ((0.1, 0.1), (4, 4), None),
        ((0.1, 0.2), (6, 6), (8, 4)),
        ((0.1, 0.105), (40, 40), None),
        ((0.1, 0.0), (4, 4), None),
        ((0.1,), (4,), None),
        ((0.3, 0.1), (1, 1), None),
        ((0.001, 0.002), (6, 6), None),
    ],
)
def test_shares_change_for_a_clear_gain(
    paces: tuple[float, ...], shares: tuple[int, ...], better: tuple[int, ...] | None
) -> None:
    assert better_shares(paces, shares) == better


def test_one_slow_step_changes_nothing() -> None:
    watch = PaceWatch(num_steps=3)
    for paces in ((0.1, 0.2), (0.1, 0.1), (0.1, 0.2), (0.1, 0.2)):
        watch.note(paces)
        assert watch.better_than((6, 6)) is None
    watch.note((0.1, 0.21))
    assert watch.better_than((6, 6)) == (8, 4)
    watch.note((0.1, 0.0))
    assert watch.better_than((6, 6)) is None, "a pace that nobody knows"
