"""Shares that follow measured paces are the best ones, and change only for a clear gain."""

import itertools
import random

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
    for paces in ((0.1, 0.13), (0.1, 0.1), (0.1, 0.13), (0.1, 0.13)):
        watch.note(paces)
        assert watch.better_than((60, 60)) is None
    watch.note((0.1, 0.13))
    assert watch.better_than((60, 60)) == (68, 52)
    watch.note((0.1, 0.0))
    assert watch.better_than((60, 60)) is None, "a pace that nobody knows"


def test_two_steps_suffice_for_a_large_gain() -> None:
    watch = PaceWatch()
    for paces in ((0.1, 0.1), (0.1, 0.15), (0.1, 0.2)):  # the member became slower in the middle of a step
        watch.note(paces)
        assert watch.better_than((6, 6)) is None
    watch.note((0.1, 0.21))
    assert watch.better_than((6, 6)) == (8, 4)
    watch.note((0.1, 0.21))
    assert watch.better_than((8, 4)) is None, "shares that fit stay"


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([2, 3, 4]))
def test_chance_hardly_changes_shares(chance: random.Random, num_replicas: int) -> None:
    """Replicas are equally fast, and each step takes up to a tenth more or less."""
    watch, shares = PaceWatch(), (6,) * num_replicas
    for _ in range(60):
        watch.note(tuple(0.1 * chance.uniform(0.9, 1.1) for _ in shares))
        assert watch.better_than(shares) is None


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(1.7, 4.0))
def test_a_member_that_becomes_slower_is_followed_once(chance: random.Random, factor: float) -> None:
    """Paces vary by a twentieth. The new shares are near the best ones, come within four steps, and then stay."""
    shares: tuple[int, ...] = (6, 6)
    watch, num_changes = PaceWatch(), 0
    for step in range(40):
        slower = 1.0 if step < 10 else factor
        paces = (0.1 * chance.uniform(0.95, 1.05), 0.1 * slower * chance.uniform(0.95, 1.05))
        watch.note(paces)
        if (better := watch.better_than(shares)) is not None:
            assert step >= 10
            shares, num_changes, watch = better, num_changes + 1, PaceWatch()
        if step == 14:
            assert num_changes >= 1
    best_s = min(longest_s(split, [0.1, 0.1 * factor]) for split in splits(12, 2))
    assert longest_s(shares, [0.1, 0.1 * factor]) <= 1.12 * best_s
    assert num_changes <= 2
