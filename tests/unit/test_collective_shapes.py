"""What transfer lists promise by their shape: bytes, requests and rounds; and which list is chosen."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.plans.plan import OwnTransportName
from zooid.schedule.all_reduce_choice import (
    ALL_REDUCE,
    EXCHANGE_MAX_BYTES,
    MAX_CHUNKS,
    MIN_CHUNK_BYTES,
    AllReduceChoice,
    break_even_bytes,
    choose_all_reduce,
)
from zooid.schedule.site_hierarchy import hierarchical
from zooid.schedule.transfer_lists import (
    TransferList,
    all_gather,
    all_to_all,
    broadcast,
    exchange,
    gather,
    pipelined,
    reduce,
    reduce_scatter,
    ring,
    scatter,
    spans,
    streaming,
    three_phase,
    tree,
)

quick = settings(deadline=None, max_examples=80)

AllReduce = Callable[[int, int], TransferList]

sizes = st.integers(0, 50)
rank_counts = st.integers(1, 6)
chunk_counts = st.integers(1, 4)
site_lists = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def uploaded(transfers: TransferList, rank: int) -> int:
    return sum(transfer.num_elements for transfer in transfers if transfer.source == rank)


def downloaded(transfers: TransferList, rank: int) -> int:
    return sum(transfer.num_elements for transfer in transfers if rank in transfer.readers)


@quick
@given(st.sampled_from([three_phase, pipelined, streaming]), sizes, st.integers(2, 6))
def test_scatter_reduce_moves_the_bytes_of_its_formula(
    all_reduce: AllReduce, num_elements: int, num_ranks: int
) -> None:
    """Up: the others' splits and one's own merged one, s in all. Down: own split from n−1, then all merged others.

    With s = n·k elements that is s up and 2s(n−1)/n down; where n does not divide s, own split p takes the place of
    s/n: s up, (n−1)·p + (s − p) down.
    """
    transfers = all_reduce(num_elements, num_ranks)
    for rank, (start, stop) in enumerate(spans(num_elements, num_ranks)):
        own = stop - start
        assert uploaded(transfers, rank) == (num_elements - own) + own
        assert downloaded(transfers, rank) == (num_ranks - 1) * own + (num_elements - own)
        if num_elements % num_ranks == 0:
            assert downloaded(transfers, rank) == 2 * num_elements * (num_ranks - 1) // num_ranks


@quick
@given(sizes, st.integers(2, 6), chunk_counts)
def test_a_ring_moves_the_bytes_of_its_formula_between_neighbours(
    part_size: int, num_ranks: int, num_chunks: int
) -> None:
    """2s(n−1)/n up and as much down."""
    num_elements = part_size * num_ranks
    transfers = ring(num_elements, num_ranks, num_chunks)
    assert {(t.source + 1) % num_ranks for t in transfers} == {t.readers[0] for t in transfers}
    assert all(t.readers == ((t.source + 1) % num_ranks,) for t in transfers)
    for rank in range(num_ranks):
        assert uploaded(transfers, rank) == downloaded(transfers, rank) == 2 * part_size * (num_ranks - 1)


@quick
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), chunk_counts)
def test_by_site_nobody_moves_more_than_without_and_sites_send_the_least(
    site_size: int, num_sites: int, unit: int, num_chunks: int
) -> None:
    """2s(N−1)/N down every member's link, over sockets as much up; 2s(G−1)/G out of every site and into it."""
    num_ranks = site_size * num_sites
    num_elements = unit * num_ranks * num_chunks
    sites = [rank % num_sites for rank in range(num_ranks)]
    transfers = hierarchical(num_elements, sites, num_chunks)
    messages = [(t.source, reader, t.num_elements) for t in transfers for reader in t.readers]
    for rank in range(num_ranks):
        assert downloaded(transfers, rank) == 2 * num_elements * (num_ranks - 1) // num_ranks
        assert sum(size for source, _, size in messages if source == rank) == downloaded(transfers, rank)
    for site in range(num_sites):
        wanted = 2 * num_elements * (num_sites - 1) // num_sites
        far = [(sites[source], sites[reader], size) for source, reader, size in messages]
        assert sum(size for source, reader, size in far if source == site != reader) == wanted
        assert sum(size for source, reader, size in far if reader == site != source) == wanted


def test_between_sites_every_member_has_a_share_of_what_crosses() -> None:
    """So that as many connections carry it as there are members, and not those of one that stands for the site."""
    transfers = hierarchical(2400, ["us", "us", "eu", "eu", "eu"], 2)
    crossing = [t for t in transfers if any((t.source < 2) != (reader < 2) for reader in t.readers)]
    sent = {rank: sum(t.num_elements for t in crossing if t.source == rank) for rank in range(5)}
    assert sent == {0: 1200, 1: 1200, 2: 800, 3: 800, 4: 800}


@quick
@given(sizes, site_lists, chunk_counts)
def test_by_site_a_rank_adds_up_an_element_once(num_elements: int, sites: list[int], num_chunks: int) -> None:
    """Two sums of the same elements would need an order, which a list does not give them."""
    transfers = hierarchical(num_elements, sites, num_chunks)
    for rank in range(len(sites)):
        summed = {(t.start, t.stop) for t in transfers if rank in t.readers and t.combine == "reduce"}
        elements = [at for start, stop in summed for at in range(start, stop)]
        assert len(elements) == len(set(elements))


@pytest.mark.parametrize("num_ranks", range(3, 7))
@pytest.mark.parametrize("all_reduce", [three_phase, pipelined, partial(streaming, num_chunks=1)])
def test_a_rank_puts_once_for_each_rank_and_gets_twice_from_each_other(all_reduce: AllReduce, num_ranks: int) -> None:
    transfers = all_reduce(60, num_ranks)
    for rank in range(num_ranks):
        assert sum(1 for transfer in transfers if transfer.source == rank) == num_ranks, "puts of a rank"
        assert sum(1 for transfer in transfers if rank in transfer.readers) == 2 * (num_ranks - 1), "gets of a rank"


@pytest.mark.parametrize("num_ranks", range(2, 7))
def test_three_phase_has_its_rounds(num_ranks: int) -> None:
    """Upload everything, take and merge one's own, upload that, take the others'."""
    for transfer in three_phase(60, num_ranks):
        wanted = (0, 1) if transfer.combine == "reduce" else (2, 3)
        assert (transfer.send_round, transfer.take_round) == wanted


@pytest.mark.parametrize("num_ranks", range(2, 7))
def test_pipelined_uploads_one_split_while_it_takes_another(num_ranks: int) -> None:
    """In step k, from 1 on, rank i uploads split i + k, and takes what rank i − (k − 1) uploaded a step before."""
    transfers = pipelined(60, num_ranks)
    parts = spans(60, num_ranks)
    for rank in range(num_ranks):
        for step in range(1, num_ranks + 1):
            sends = [t for t in transfers if t.source == rank and t.send_round == step - 1]
            takes = [t for t in transfers if rank in t.readers and t.take_round == step - 1]
            wanted = [parts[(rank + step) % num_ranks]] if step < num_ranks else []
            assert [(t.start, t.stop) for t in sends] == wanted
            assert [t.source for t in takes] == ([(rank - (step - 1)) % num_ranks] if step > 1 else [])
            assert all((t.start, t.stop) == parts[rank] for t in takes)
        (merged,) = (t for t in transfers if t.source == rank and t.combine == "copy")
        assert (merged.send_round, merged.take_round) == (num_ranks, num_ranks + 1)


@pytest.mark.parametrize("num_chunks", [1, 3, 8])
@pytest.mark.parametrize("num_ranks", [3, 5])
def test_streaming_sends_a_chunk_on_when_its_parts_are_in(num_ranks: int, num_chunks: int) -> None:
    transfers = streaming(240, num_ranks, num_chunks)
    merged = [transfer for transfer in transfers if transfer.combine == "copy"]
    assert len(merged) == num_ranks * num_chunks
    for transfer in merged:
        waited_for = [transfers[number] for number in transfer.after]
        assert sorted(part.source for part in waited_for) == sorted(transfer.readers)
        assert all((part.start, part.stop) == (transfer.start, transfer.stop) for part in waited_for)
    assert {(t.send_round, t.take_round) for t in transfers} == {(0, 0)}, "nothing waits for a phase"


@pytest.mark.parametrize("num_chunks", [1, 3, 8])
def test_two_ranks_stream_everything_to_one_another(num_chunks: int) -> None:
    transfers = streaming(240, 2, num_chunks)
    for rank in (0, 1):
        own = [transfer for transfer in transfers if transfer.source == rank]
        assert [(t.readers, t.combine, t.after) for t in own] == [((1 - rank,), "reduce", ())] * 2 * num_chunks
        assert [own[0].start, *(t.stop for t in own)] == [*(t.start for t in own), 240], "without gaps"


@quick
@given(sizes, st.integers(2, 6))
def test_exchange_costs_one_put_and_a_get_from_everyone(num_elements: int, num_ranks: int) -> None:
    transfers = exchange(num_elements, num_ranks)
    assert len(transfers) == num_ranks
    for rank in range(num_ranks):
        assert uploaded(transfers, rank) == num_elements
        assert downloaded(transfers, rank) == num_elements * (num_ranks - 1)


@quick
@given(
    st.one_of(
        st.builds(exchange, sizes, rank_counts),
        st.builds(three_phase, sizes, rank_counts),
        st.builds(pipelined, sizes, rank_counts),
        st.builds(streaming, sizes, rank_counts, chunk_counts),
        st.builds(ring, sizes, rank_counts, chunk_counts),
        st.builds(hierarchical, sizes, site_lists, chunk_counts),
        st.builds(all_gather, sizes, rank_counts),
        st.builds(broadcast, sizes, rank_counts, st.just(0)),
        st.builds(reduce, sizes, rank_counts, st.just(0)),
        st.builds(gather, rank_counts, st.just(0)),
        st.builds(scatter, rank_counts, st.just(0)),
        st.builds(all_to_all, rank_counts),
    )
)
def test_a_source_waits_only_for_what_it_reads_itself(transfers: TransferList) -> None:
    for number, transfer in enumerate(transfers):
        assert transfer.source not in transfer.readers
        assert len(set(transfer.readers)) == len(transfer.readers) >= 1
        for before in transfer.after:
            assert before < number, "a list is in an order in which it can be executed"
            assert transfer.source in transfers[before].readers
            assert transfers[before].take_round <= transfer.send_round, "nor for what comes in a later round"
        assert transfer.send_round <= transfer.take_round, "a round never waits for one that is not over"


@pytest.mark.parametrize("num_ranks", range(2, 7))
@pytest.mark.parametrize("all_reduce", [three_phase, pipelined])
def test_a_merged_split_waits_for_its_parts_and_for_nothing_else(all_reduce: AllReduce, num_ranks: int) -> None:
    transfers = all_reduce(30, num_ranks)
    merged = [transfer for transfer in transfers if transfer.combine == "copy"]
    assert len(merged) == num_ranks
    for transfer in merged:
        waited_for = [transfers[number] for number in transfer.after]
        assert len(waited_for) == num_ranks - 1
        for part in waited_for:
            assert (part.combine, part.start, part.stop) == ("reduce", transfer.start, transfer.stop)


@pytest.mark.parametrize(
    "transfers",
    [
        *(all_reduce(9, 1) for all_reduce in ALL_REDUCE.values()),
        hierarchical(9, ["us"]),
        *(broadcast(9, 1, 0), all_gather(9, 1), reduce(9, 1, 0), reduce_scatter(((0, 9),))),
        *(gather(1, 0), scatter(1, 0), all_to_all(1)),
    ],
)
def test_a_single_rank_has_nothing_to_send(transfers: TransferList) -> None:
    assert transfers == ()


@pytest.mark.parametrize("all_reduce", [three_phase, pipelined, streaming, ring])
def test_no_reader_is_besieged_at_the_start(all_reduce: AllReduce) -> None:
    first = all_reduce(40, 5)[:5]
    assert sorted(transfer.readers[0] for transfer in first) == list(range(5))


@quick
@given(sizes, st.integers(1, 12))
def test_spans_cover_the_buffer_evenly(num_elements: int, num_parts: int) -> None:
    parts = spans(num_elements, num_parts)
    assert [at for start, stop in parts for at in range(start, stop)] == list(range(num_elements))
    lengths = [stop - start for start, stop in parts]
    assert len(lengths) == num_parts
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("num_elements", "element_bytes", "num_ranks", "expected"),
    [
        (EXCHANGE_MAX_BYTES // 4, 4, 4, exchange),
        (EXCHANGE_MAX_BYTES // 4 + 1, 4, 4, three_phase),
        (EXCHANGE_MAX_BYTES // 8 + 1, 8, 4, three_phase),
        (3, EXCHANGE_MAX_BYTES, 4, exchange),
    ],
    ids=["small", "large", "large elements", "fewer elements than ranks"],
)
def test_small_all_reduces_save_round_trips_and_large_ones_save_bytes(
    num_elements: int, element_bytes: int, num_ranks: int, expected: AllReduce
) -> None:
    chosen = choose_all_reduce(num_elements, element_bytes, num_ranks, preferred="three_phase")
    assert chosen == expected(num_elements, num_ranks)


@pytest.mark.parametrize("preferred", sorted(ALL_REDUCE))
def test_an_algorithm_that_is_asked_for_is_used_for_what_is_large(preferred: str) -> None:
    num_elements = EXCHANGE_MAX_BYTES // 4 + 1
    chosen = choose_all_reduce(num_elements, 4, 4, preferred)
    one_chunk = {"streaming": streaming(num_elements, 4, 1), "ring": ring(num_elements, 4, 1)}
    assert chosen == one_chunk.get(preferred, ALL_REDUCE[preferred](num_elements, 4))


@pytest.mark.parametrize("preferred", ["streaming", "ring"])
@pytest.mark.parametrize(
    ("split_bytes", "num_chunks"),
    [
        (MIN_CHUNK_BYTES - 4, 1),
        (2 * MIN_CHUNK_BYTES, 2),
        (MAX_CHUNKS * MIN_CHUNK_BYTES, MAX_CHUNKS),
        (100 * MIN_CHUNK_BYTES, MAX_CHUNKS),
    ],
)
def test_splits_are_cut_into_chunks_that_are_worth_a_request(preferred: str, split_bytes: int, num_chunks: int) -> None:
    num_elements = 3 * split_bytes // 4
    wanted = {"streaming": streaming, "ring": ring}[preferred](num_elements, 3, num_chunks)
    assert choose_all_reduce(num_elements, 4, 3, preferred) == wanted


@quick
@given(st.integers(1, 2**22), st.sampled_from([1, 2, 4, 8]), st.integers(2, 4), st.integers(0, 2**22))
def test_auto_saves_round_trips_up_to_where_it_is_told_and_bytes_above(
    num_elements: int, element_bytes: int, num_ranks: int, exchange_max_bytes: int
) -> None:
    chosen = choose_all_reduce(num_elements, element_bytes, num_ranks, "auto", exchange_max_bytes)
    if num_elements * element_bytes <= exchange_max_bytes or num_elements < num_ranks:
        assert chosen == exchange(num_elements, num_ranks)
    else:
        combine, num_each = ("reduce", 4) if num_ranks == 2 else ("copy", num_ranks)
        num_chunks = sum(1 for transfer in chosen if transfer.combine == combine) // num_each
        assert chosen == streaming(num_elements, num_ranks, num_chunks)


@quick
@given(st.floats(0.0001, 0.5), st.floats(1e5, 1e9), st.integers(3, 12))
def test_at_break_even_both_algorithms_take_the_same_time(latency_s: float, bytes_per_s: float, num_ranks: int) -> None:
    size = break_even_bytes(latency_s, bytes_per_s, num_ranks)
    exchange_s = 2 * latency_s + num_ranks * size / bytes_per_s
    streaming_s = 4 * latency_s + 2 * size / bytes_per_s
    assert streaming_s - exchange_s == pytest.approx(0, abs=2 * num_ranks / bytes_per_s)


def test_between_two_ranks_everything_is_exchanged_until_it_can_be_cut() -> None:
    assert break_even_bytes(0.001, 1e9, 2) == break_even_bytes(0.1, 1e6, 2) == 2 * MIN_CHUNK_BYTES


@pytest.mark.parametrize("transport", ["store", "tcp"])
def test_votes_of_many_members_go_along_a_tree(transport: OwnTransportName) -> None:
    few, many = (AllReduceChoice(transport, "auto", number, 0.001).transfers(10, 8) for number in (8, 64))
    assert few == exchange(10, 8)
    assert many == tree(10, 64, publishes=transport == "store")
    through_codec = AllReduceChoice(transport, "auto", 64, 0.001).transfers(10, 8, is_lossy=True)
    assert through_codec == exchange(10, 64), "digits are lost once"
