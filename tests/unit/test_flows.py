"""Work that shares what serves it: nobody gets more at the cost of somebody slower, and nothing is left unused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.predictor.simulation.clock import Pipe, Simulation

quick = settings(deadline=None, max_examples=60)

Wanted = tuple[float, tuple[int, ...], float]
"""(amount, pipes, limit)"""


def ends_s(capacities: list[float], flows: list[Wanted]) -> list[float]:
    """When each is through, if all begin at once."""
    simulation = Simulation()
    pipes = [Pipe(capacity) for capacity in capacities]
    ends = [math.nan] * len(flows)

    def note(number: int) -> None:
        ends[number] = simulation.now_s

    for number, (amount, through, limit) in enumerate(flows):
        own = tuple(pipes[at] for at in through)
        simulation.flow(amount, own, limit, lambda number=number: note(number))  # type: ignore[misc]
    simulation.run()
    return ends


@pytest.mark.parametrize(
    ("capacities", "flows", "ends"),
    [
        # a slow reader leaves its sender's uplink to the other message
        ([40, 10, 40], [(10, (0, 1), 99), (30, (0, 2), 99)], [1, 1]),
        # a stream's own limit leaves the rest to the others
        ([30], [(5, (0,), 5), (25, (0,), 99)], [1, 1]),
        # three on one line, one of which also meets a narrow one; when it is alone there, it has all of that
        ([30, 4], [(13, (0,), 99), (13, (0,), 99), (8, (0, 1), 99)], [1, 1, 2]),
        # what shares nothing does not matter
        ([10, 20], [(10, (0,), 99), (20, (1,), 99)], [1, 1]),
        # no pipes: the limit alone
        ([1], [(10, (), 5)], [2]),
    ],
)
def test_rates_are_max_min_fair(capacities: list[float], flows: list[Wanted], ends: list[float]) -> None:
    assert ends_s(capacities, flows) == pytest.approx(ends)


flows_of_any_kind = st.lists(
    st.tuples(
        st.floats(0.1, 100),
        st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(tuple),
        st.floats(0.5, 50),
    ),
    min_size=1,
    max_size=8,
)


@quick
@given(st.lists(st.floats(0.5, 50), min_size=4, max_size=4), flows_of_any_kind)
def test_no_pipe_carries_more_than_it_can_and_nothing_is_faster_than_alone(
    capacities: list[float], flows: list[Wanted]
) -> None:
    ends = ends_s(capacities, flows)
    for (amount, through, limit), end_s in zip(flows, ends, strict=True):
        assert end_s >= amount / min(limit, *(capacities[pipe] for pipe in through)) * (1 - 1e-9)
    for pipe, capacity in enumerate(capacities):
        carried = [(amount, end) for (amount, through, _), end in zip(flows, ends, strict=True) if pipe in through]
        if carried:
            assert sum(amount for amount, _ in carried) <= capacity * max(end for _, end in carried) * (1 + 1e-9)


@quick
@given(st.lists(st.floats(0.5, 50), min_size=4, max_size=4), flows_of_any_kind)
def test_something_always_runs_as_fast_as_it_can(capacities: list[float], flows: list[Wanted]) -> None:
    """The last one to end was held up by its limit or by a full pipe all the time, so that the whole is no longer than
    everything one after the other on the narrowest."""
    slowest = [amount / min(limit, *(capacities[pipe] for pipe in through)) for amount, through, limit in flows]
    assert max(ends_s(capacities, flows)) <= sum(slowest) * (1 + 1e-9)
