"""Closed forms of all-reduces, links and scaling: what holds for every case, and what the transfer lists say."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines.simulated import three_phase_s
from tests.unit.paper_formulas import best_speedup, granularity, samples_per_s
from zooid.core.errors import InputError
from zooid.predictor import equations as forms
from zooid.predictor.equations import hierarchical_s, streaming_bound_s
from zooid.schedule.site_hierarchy import hierarchical
from zooid.schedule.transfer_lists import TransferList, pipelined, ring, streaming, three_phase

quick = settings(deadline=None, max_examples=100)

ALL_REDUCES: dict[str, Callable[..., Any]] = {
    "three_phase": three_phase_s,
    "pipelined": forms.pipelined_s,
    "streaming": forms.streaming_bound_s,
    "ring": forms.ring_s,
}

names = st.sampled_from(sorted(ALL_REDUCES))
sizes_bytes = st.integers(0, 10**12)
rates = st.floats(1e3, 1e12)
latencies_s = st.floats(0, 1, allow_subnormal=False)
counts = st.integers(1, 64)
crews = st.lists(st.integers(1, 8), min_size=1, max_size=5)
RATE = 7e6
LATENCY_S = 0.25


# All-reduces


@quick
@given(names, sizes_bytes, counts, rates, latencies_s, st.floats(1, 1e3))
def test_more_bandwidth_is_never_slower_and_more_bytes_or_latency_never_faster(
    name: str, num_bytes: int, num_members: int, rate: float, latency_s: float, factor: float
) -> None:
    time_s = ALL_REDUCES[name]
    plain = time_s(num_bytes, num_members, rate, latency_s)
    assert plain >= 0
    assert time_s(num_bytes, num_members, rate * factor, latency_s) <= plain * (1 + 1e-12)
    assert time_s(num_bytes * factor, num_members, rate, latency_s) >= plain * (1 - 1e-12)
    assert time_s(num_bytes, num_members, rate, latency_s * factor) >= plain * (1 - 1e-12)


@quick
@given(names, sizes_bytes, counts, rates, latencies_s)
def test_no_algorithm_is_faster_than_the_bound(
    name: str, num_bytes: int, num_members: int, rate: float, latency_s: float
) -> None:
    bound_s = streaming_bound_s(num_bytes, num_members, rate)
    assert ALL_REDUCES[name](num_bytes, num_members, rate, latency_s) >= bound_s * (1 - 1e-12)


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_one_member_has_nothing_to_reduce(name: str) -> None:
    assert ALL_REDUCES[name](1e9, 1, 1e6, 0.1) == 0


def rounds_s(transfers: TransferList, num_ranks: int) -> float:
    """A list round by round: in each, the busiest link, and the latency once."""
    total_s = 0.0
    for number in range(1 + max(t.take_round for t in transfers)):
        loads = [
            sum(t.num_elements for t in transfers if (t.source, t.send_round) == (rank, number))
            for rank in range(num_ranks)
        ]
        loads += [
            sum(t.num_elements for t in transfers if rank in t.readers and t.take_round == number)
            for rank in range(num_ranks)
        ]
        total_s += max(loads) / RATE + LATENCY_S
    return total_s


@pytest.mark.parametrize("num_ranks", range(2, 9))
def test_lists_with_rounds_take_what_their_formulas_say(num_ranks: int) -> None:
    num_bytes = 840 * num_ranks
    assert three_phase_s(num_bytes, num_ranks, RATE, LATENCY_S) == pytest.approx(
        rounds_s(three_phase(num_bytes, num_ranks), num_ranks)
    )
    assert forms.pipelined_s(num_bytes, num_ranks, RATE, LATENCY_S) == pytest.approx(
        rounds_s(pipelined(num_bytes, num_ranks), num_ranks)
    )


def busiest_s(transfers: TransferList, num_ranks: int) -> float:
    """The downlink of who takes most."""
    return max(sum(t.num_elements for t in transfers if rank in t.readers) for rank in range(num_ranks)) / RATE


@pytest.mark.parametrize("num_ranks", range(2, 9))
def test_lists_without_rounds_load_links_as_their_formulas_say(num_ranks: int) -> None:
    num_bytes = 840 * num_ranks
    bound_s = streaming_bound_s(num_bytes, num_ranks, RATE)
    assert bound_s == pytest.approx(busiest_s(streaming(num_bytes, num_ranks), num_ranks))
    transfers = ring(num_bytes, num_ranks)
    num_hops = len(transfers) // num_ranks
    wanted_s = busiest_s(transfers, num_ranks) + num_hops * LATENCY_S
    assert forms.ring_s(num_bytes, num_ranks, RATE, LATENCY_S) == pytest.approx(wanted_s)


# By site


@quick
@given(sizes_bytes, counts, rates, st.integers(1, 20))
def test_one_site_takes_the_bound_of_a_ring_in_any_number_of_chunks(
    num_bytes: int, num_members: int, rate: float, num_chunks: int
) -> None:
    own = hierarchical_s(num_bytes, [num_members], rate, 1e3, num_chunks=num_chunks)
    assert own == pytest.approx(float(forms.ring_s(num_bytes, num_members, rate)))


@quick
@given(sizes_bytes, counts, rates, rates, latencies_s)
def test_sites_of_one_member_are_members_far_from_one_another(
    num_bytes: int, num_sites: int, inside: float, between: float, latency_s: float
) -> None:
    own = hierarchical_s(num_bytes, [1] * num_sites, inside, between, 0.7, latency_s)
    flat = streaming_bound_s(num_bytes, num_sites, min(inside, between)) + (2 * latency_s if num_sites > 1 else 0)
    assert own == pytest.approx(float(flat))


@quick
@given(sizes_bytes, crews, rates, rates, st.integers(1, 20), st.floats(1, 100))
def test_by_site_more_bandwidth_or_chunks_are_never_slower(
    num_bytes: int, sizes: list[int], inside: float, between: float, num_chunks: int, factor: float
) -> None:
    def time_s(inside: float, between: float, num_chunks: int) -> float:
        return float(hierarchical_s(num_bytes, sizes, inside, between, 0.01, 0.1, num_chunks)) * (1 + 1e-9)

    plain_s = float(hierarchical_s(num_bytes, sizes, inside, between, 0.01, 0.1, num_chunks))
    assert plain_s >= 0
    assert plain_s <= time_s(inside, between, 1)
    for faster in ((inside * factor, between), (inside, between * factor)):
        assert float(hierarchical_s(num_bytes, sizes, *faster, 0.01, 0.1, num_chunks)) <= plain_s * (1 + 1e-9)


@quick
@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 8))
def test_in_many_chunks_only_the_busiest_link_counts_and_the_list_says_which(
    site_size: int, num_sites: int, slower: int
) -> None:
    num_ranks = site_size * num_sites
    num_bytes = 12 * num_ranks
    sites = [rank // site_size for rank in range(num_ranks)]
    transfers = hierarchical(num_bytes, sites)
    messages = [(sites[t.source], sites[reader], t.num_elements) for t in transfers for reader in t.readers]
    into = [sum(size for source, reader, size in messages if reader == n != source) for n in range(num_sites)]
    wanted_s = max(busiest_s(transfers, num_ranks), max(into) * slower / RATE)
    own = hierarchical_s(num_bytes, [site_size] * num_sites, RATE, RATE / slower, num_chunks=1e12)
    assert own == pytest.approx(wanted_s)


def test_a_site_of_size_0_is_none() -> None:
    padded = hierarchical_s(1e9, [[4, 4, 0], [3, 2, 1], [5, 0, 0]], 1e9, 1e8, 0.001, 0.1, 4)
    alone = [hierarchical_s(1e9, sizes, 1e9, 1e8, 0.001, 0.1, 4) for sizes in ([4, 4], [3, 2, 1], [5])]
    assert padded.tolist() == pytest.approx([float(each) for each in alone])


# Links


@quick
@given(counts, rates, rates)
def test_those_who_share_get_their_own_rate_or_an_even_part(number: int, own: float, total: float) -> None:
    each = float(forms.shared_bytes_per_s(number, own, total))
    assert each <= own
    assert number * each <= total * (1 + 1e-12)
    assert each == own or number * each == pytest.approx(total)


@pytest.mark.parametrize(
    ("num_streams", "measured_gbit"), [(1, 0.21), (5, 1.06), (10, 2.11), (20, 4.27), (40, 6.17), (80, 6.22)]
)
def test_streams_across_the_atlantic_carry_what_was_measured(num_streams: int, measured_gbit: float) -> None:
    """iperf between Belgium and Iowa, medians of five, from the artifacts of clouds and continents."""
    each = forms.shared_bytes_per_s(num_streams, 0.21, 6.2)
    assert num_streams * each == pytest.approx(measured_gbit, rel=0.02)


@quick
@given(sizes_bytes, st.integers(2, 64), rates, rates, st.integers(1, 80))
def test_more_streams_never_hurt_and_never_beat_the_link(
    num_bytes: int, num_members: int, stream: float, link: float, num_streams: int
) -> None:
    def time_s(num_streams: int) -> float:
        return float(forms.averaging_s(num_bytes, num_members, stream, link, streams_per_pair=num_streams))

    bound_s = float(streaming_bound_s(num_bytes, num_members, link))
    assert bound_s * (1 - 1e-12) <= time_s(num_streams) <= time_s(1) * (1 + 1e-12)
    assert time_s(10**12) == pytest.approx(bound_s)


# Scaling


@quick
@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), counts, counts)
def test_speedups_are_ratios_of_samples_a_second(compute_s: float, wire_s: float, before: int, after: int) -> None:
    of_now = granularity(compute_s, wire_s)
    now = samples_per_s(1000, compute_s, wire_s)
    then = samples_per_s(1000, compute_s * before / after, wire_s)
    assert forms.speedup_of_members(of_now, before, after) == pytest.approx(float(then / now))
    assert forms.speedup_of_members(of_now, before, after) <= best_speedup(of_now)
    assert best_speedup(of_now) == pytest.approx(float(samples_per_s(1000, 0.0, wire_s) / now))
    larger = samples_per_s(3000, 3 * compute_s, wire_s)
    assert forms.speedup_of_batch(of_now, 3) == pytest.approx(float(larger / now))


def test_without_communication_members_bring_all_that_they_compute() -> None:
    alone = granularity(5.0, 0.0)
    assert np.isinf(alone)
    assert forms.speedup_of_members(alone, 4, 5) == pytest.approx(1.25)
    assert forms.speedup_of_batch(alone) == pytest.approx(1.0)


# Arrays and refusals


def test_a_grid_of_cases_is_one_call() -> None:
    sizes, members = np.array([1e6, 1e9])[:, None], np.array([1, 2, 8])
    for name, time_s in ALL_REDUCES.items():
        grid = time_s(sizes, members, 1e8, 0.04)
        assert grid.shape == (2, 3), name
        for at, size in enumerate(sizes[:, 0]):
            assert grid[at].tolist() == [time_s(size, n, 1e8, 0.04) for n in members]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forms.ring_s(1e6, 0, 1e6), "`num_members` is 0; it must be at least 1"),
        (lambda: forms.pipelined_s(1e6, 4, [1e6, 0.0]), "`bytes_per_s` is 0; it must be above 0"),
        (lambda: three_phase_s(-1.0, 4, 1e6), "`num_bytes` is -1; it must be at least 0"),
        (lambda: streaming_bound_s(float("nan"), 4, 1e6), "`num_bytes` is nan; it must be at least 0"),
        (lambda: hierarchical_s(1e6, [0, 0], 1e6, 1e6), "number of `site_sizes` above 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
