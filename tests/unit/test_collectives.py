"""Transfer lists give every rank the right result, in any order that they allow, for exactly the bytes they promise.

The lists are executed here on plain arrays, by the rules that their module states and without the process group.
"""

from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.schedule.collectives import (
    ALL_REDUCE,
    EXCHANGE_MAX_BYTES,
    Transfer,
    TransferList,
    all_gather,
    broadcast,
    choose_all_reduce,
    exchange,
    spans,
    three_phase,
)

quick = settings(deadline=None, max_examples=80)

Array = npt.NDArray[np.float64]
AllReduce = Callable[[int, int], TransferList]

sizes = st.integers(0, 50)
rank_counts = st.integers(1, 6)
randoms = st.randoms(use_true_random=False)
all_reduces = st.sampled_from(list(ALL_REDUCE.values()))


class Rank:
    """One rank's buffer, and what it has taken in."""

    def __init__(self, number: int, buffer: Array, transfers: TransferList) -> None:
        self.number = number
        self.buffer = buffer.copy()
        self.taken: dict[int, Array] = {}
        self._transfers = transfers

    def may_send(self, transfer: Transfer) -> bool:
        return self.taken.keys() >= set(transfer.after)

    def take(self, number: int, data: Array) -> None:
        """Copies are written at once; a span is added up when all of its parts are in, in the order of ranks."""
        self.taken[number] = data
        transfer = self._transfers[number]
        span = slice(transfer.start, transfer.stop)
        if transfer.combine == "copy":
            self.buffer[span] = data
            return
        parts = {self.number: self.buffer[span]}
        for other, sibling in enumerate(self._transfers):
            is_part = sibling.combine == "reduce" and self.number in sibling.readers
            if is_part and (sibling.start, sibling.stop) == (transfer.start, transfer.stop):
                if other not in self.taken:
                    return
                parts[sibling.source] = self.taken[other]
        self.buffer[span] = in_rank_order([parts[rank] for rank in sorted(parts)])


def run(transfers: TransferList, before: list[Array], random: Random) -> list[Array]:
    """Execute a list in a random order: whatever may be sent is sent, whatever was sent is taken, at any time.

    One rule beyond the list's own: a rank changes a span of its buffer only after its first sends of it.
    """
    ranks = [Rank(number, buffer, transfers) for number, buffer in enumerate(before)]
    unsent = dict(enumerate(transfers))
    sent: dict[int, Array] = {}
    untaken = {(number, reader) for number, transfer in enumerate(transfers) for reader in transfer.readers}

    def send(number: int) -> None:
        transfer = unsent.pop(number)
        sent[number] = ranks[transfer.source].buffer[transfer.start : transfer.stop].copy()

    def take(number: int, reader: int) -> None:
        untaken.remove((number, reader))
        ranks[reader].take(number, sent[number])

    while unsent or untaken:
        going_out = {transfer.source for transfer in unsent.values() if not transfer.after}
        possible = [partial(send, number) for number, t in unsent.items() if ranks[t.source].may_send(t)]
        possible += [partial(take, n, reader) for n, reader in sorted(untaken) if n in sent and reader not in going_out]
        assert possible, f"nothing can go, but {unsent or untaken} is left"
        random.choice(possible)()
    return [rank.buffer for rank in ranks]


def buffers_of(num_ranks: int, num_elements: int, random: Random) -> list[Array]:
    """Numbers of such different sizes that a sum depends on the order in which it is taken."""
    generator = np.random.default_rng(random.getrandbits(32))
    shape = (num_ranks, num_elements)
    return list(generator.standard_normal(shape) * 10.0 ** generator.integers(-8, 8, shape))


def in_rank_order(parts: list[Array]) -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def equal(first: Array, second: Array) -> bool:
    return first.tobytes() == second.tobytes()


def uploaded(transfers: TransferList, rank: int) -> int:
    return sum(transfer.num_elements for transfer in transfers if transfer.source == rank)


def downloaded(transfers: TransferList, rank: int) -> int:
    return sum(transfer.num_elements for transfer in transfers if rank in transfer.readers)


@quick
@given(all_reduces, sizes, rank_counts, randoms)
def test_all_reduce_gives_every_rank_the_same_bits(
    all_reduce: AllReduce, num_elements: int, num_ranks: int, random: Random
) -> None:
    before = buffers_of(num_ranks, num_elements, random)
    for buffer in run(all_reduce(num_elements, num_ranks), before, random):
        assert equal(buffer, in_rank_order(before))


@quick
@given(sizes, rank_counts, st.data(), randoms)
def test_broadcast_gives_everyone_the_roots_numbers(
    num_elements: int, num_ranks: int, data: st.DataObject, random: Random
) -> None:
    root = data.draw(st.integers(0, num_ranks - 1))
    before = buffers_of(num_ranks, num_elements, random)
    for buffer in run(broadcast(num_elements, num_ranks, root), before, random):
        assert equal(buffer, before[root])


@quick
@given(st.integers(0, 8), rank_counts, randoms)
def test_all_gather_gives_everyone_all_parts(part_size: int, num_ranks: int, random: Random) -> None:
    before = buffers_of(num_ranks, part_size * num_ranks, random)
    parts = [buffer[part_size * rank : part_size * (rank + 1)] for rank, buffer in enumerate(before)]
    for buffer in run(all_gather(part_size * num_ranks, num_ranks), before, random):
        assert equal(buffer, np.concatenate(parts))


@quick
@given(sizes, st.integers(2, 6))
def test_three_phase_moves_the_bytes_of_its_formula(num_elements: int, num_ranks: int) -> None:
    """Up: the others' splits and one's own merged one, s in all. Down: own split from n−1, then all merged others.

    With s = n·k elements that is s up and 2s(n−1)/n down; where n does not divide s, own split p takes the place of
    s/n: s up, (n−1)·p + (s − p) down.
    """
    transfers = three_phase(num_elements, num_ranks)
    for rank, (start, stop) in enumerate(spans(num_elements, num_ranks)):
        own = stop - start
        assert uploaded(transfers, rank) == (num_elements - own) + own
        assert downloaded(transfers, rank) == (num_ranks - 1) * own + (num_elements - own)
        if num_elements % num_ranks == 0:
            assert downloaded(transfers, rank) == 2 * num_elements * (num_ranks - 1) // num_ranks
    assert sum(1 for transfer in transfers if transfer.source == 0) == num_ranks, "puts of a rank"
    assert sum(1 for transfer in transfers if 0 in transfer.readers) == 2 * (num_ranks - 1), "gets of a rank"


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
        st.builds(all_gather, sizes, rank_counts),
        st.builds(broadcast, sizes, rank_counts, st.just(0)),
    )
)
def test_a_source_waits_only_for_what_it_reads_itself(transfers: TransferList) -> None:
    for number, transfer in enumerate(transfers):
        assert transfer.source not in transfer.readers
        assert len(set(transfer.readers)) == len(transfer.readers) >= 1
        for before in transfer.after:
            assert before < number, "a list is in an order in which it can be executed"
            assert transfer.source in transfers[before].readers


@pytest.mark.parametrize("num_ranks", range(2, 7))
def test_a_merged_split_waits_for_its_parts_and_for_nothing_else(num_ranks: int) -> None:
    transfers = three_phase(30, num_ranks)
    merged = [transfer for transfer in transfers if transfer.combine == "copy"]
    assert len(merged) == num_ranks
    for transfer in merged:
        waited_for = [transfers[number] for number in transfer.after]
        assert len(waited_for) == num_ranks - 1
        for part in waited_for:
            assert (part.combine, part.start, part.stop) == ("reduce", transfer.start, transfer.stop)


@pytest.mark.parametrize("transfers", [exchange(9, 1), three_phase(9, 1), broadcast(9, 1, 0), all_gather(9, 1)])
def test_a_single_rank_has_nothing_to_send(transfers: TransferList) -> None:
    assert transfers == ()


def test_three_phase_starts_with_different_readers() -> None:
    first = three_phase(40, 5)[:5]
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
