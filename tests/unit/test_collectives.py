"""Transfer lists give every rank the right result, in any order that they allow, for exactly the bytes they promise.

The lists are executed here on plain arrays, by the rules that their module states and without the process group.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.schedule.all_reduce_choice import ALL_REDUCE
from zooid.schedule.site_hierarchy import hierarchical
from zooid.schedule.transfer_lists import (
    Transfer,
    TransferList,
    all_gather,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    ring,
    scatter,
    spans,
    streaming,
    tree,
)

quick = settings(deadline=None, max_examples=50)

Array = npt.NDArray[np.float64]
AllReduce = Callable[[int, int], TransferList]

sizes = st.integers(0, 50)
rank_counts = st.integers(1, 6)
randoms = st.randoms(use_true_random=False)
all_reduces = st.sampled_from(list(ALL_REDUCE.values()))
chunk_counts = st.integers(1, 4)


class Rank:
    """One rank's buffer, what it has taken in, and the round in which it is."""

    def __init__(self, number: int, buffer: Array, transfers: TransferList) -> None:
        self.number = number
        self.buffer = buffer.copy()
        self.taken: dict[int, Array] = {}
        self.round = 0
        self._transfers = transfers
        self._rounds = Counter(t.send_round for t in transfers if t.source == number)
        self._rounds.update(t.take_round for t in transfers if number in t.readers)
        self._advance()

    def may_send(self, transfer: Transfer) -> bool:
        return transfer.send_round == self.round and self.taken.keys() >= set(transfer.after)

    def did(self, at_round: int) -> None:
        """A send or a take of this round is done."""
        self._rounds[at_round] -= 1
        self._advance()

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

    def _advance(self) -> None:
        while self._rounds[self.round] == 0 and self.round <= max(self._rounds, default=-1):
            self.round += 1


def run(transfers: TransferList, before: list[Array], random: Random) -> list[Array]:
    """Execute a list in a random order: whatever may be sent is sent, whatever was sent is taken, at any time in its
    round.

    One rule beyond the list's own: a rank changes a span of its buffer only after its first sends of it.
    """
    ranks = [Rank(number, buffer, transfers) for number, buffer in enumerate(before)]
    unsent = dict(enumerate(transfers))
    sent: dict[int, Array] = {}
    untaken = {(number, reader) for number, transfer in enumerate(transfers) for reader in transfer.readers}

    def send(number: int) -> None:
        transfer = unsent.pop(number)
        sent[number] = ranks[transfer.source].buffer[transfer.start : transfer.stop].copy()
        ranks[transfer.source].did(transfer.send_round)

    def take(number: int, reader: int) -> None:
        untaken.remove((number, reader))
        ranks[reader].take(number, sent[number])
        ranks[reader].did(transfers[number].take_round)

    def may_take(number: int, reader: int) -> bool:
        transfer = transfers[number]
        is_going_out = any(start < transfer.stop and transfer.start < stop for start, stop in going_out[reader])
        return number in sent and ranks[reader].round == transfer.take_round and not is_going_out

    while unsent or untaken:
        going_out = [
            [(t.start, t.stop) for t in unsent.values() if t.source == rank.number and not t.after] for rank in ranks
        ]
        possible = [partial(send, number) for number, t in unsent.items() if ranks[t.source].may_send(t)]
        possible += [partial(take, number, reader) for number, reader in sorted(untaken) if may_take(number, reader)]
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


def splits_of(num_elements: int, num_ranks: int) -> list[slice]:
    return [slice(start, stop) for start, stop in spans(num_elements, num_ranks)]


@quick
@given(st.sampled_from(["exchange", "three_phase", "pipelined"]), sizes, rank_counts, randoms)
def test_all_reduce_gives_every_rank_the_sum_in_the_order_of_ranks(
    name: str, num_elements: int, num_ranks: int, random: Random
) -> None:
    before = buffers_of(num_ranks, num_elements, random)
    for buffer in run(ALL_REDUCE[name](num_elements, num_ranks), before, random):
        assert equal(buffer, in_rank_order(before))


@quick
@given(sizes, rank_counts, chunk_counts, randoms)
def test_streaming_gives_the_same_sum_however_it_is_cut(
    num_elements: int, num_ranks: int, num_chunks: int, random: Random
) -> None:
    before = buffers_of(num_ranks, num_elements, random)
    for buffer in run(streaming(num_elements, num_ranks, num_chunks), before, random):
        assert equal(buffer, in_rank_order(before))


@quick
@given(sizes, st.integers(1, 40), st.booleans(), randoms)
def test_a_tree_gives_every_rank_the_same_bits_for_a_few_messages_each(
    num_elements: int, num_ranks: int, publishes: bool, random: Random
) -> None:
    before = buffers_of(num_ranks, num_elements, random)
    transfers = tree(num_elements, num_ranks, publishes=publishes)
    found = run(transfers, before, random)
    np.testing.assert_allclose(found[0], np.sum(before, axis=0), atol=1e-12)
    assert all(equal(buffer, found[0]) for buffer in found)
    for rank in range(num_ranks):
        sent = [transfer for transfer in transfers if transfer.source == rank]
        num_sent = len(sent) if publishes else sum(len(transfer.readers) for transfer in sent)
        num_taken = sum(rank in transfer.readers for transfer in transfers)
        assert max(num_sent, num_taken) <= 5, "a few, however many ranks there are"


@quick
@given(sizes, rank_counts, chunk_counts, randoms)
def test_a_ring_gives_every_rank_the_same_bits_although_each_split_begins_elsewhere(
    num_elements: int, num_ranks: int, num_chunks: int, random: Random
) -> None:
    before = buffers_of(num_ranks, num_elements, random)
    wanted = np.empty(num_elements)
    for part, split in enumerate(splits_of(num_elements, num_ranks)):
        wanted[split] = in_rank_order([before[(part + hop) % num_ranks][split] for hop in range(num_ranks)])
    for buffer in run(ring(num_elements, num_ranks, num_chunks), before, random):
        assert equal(buffer, wanted)


@quick
@given(sizes, st.lists(st.sampled_from(["us", "eu", "asia"]), min_size=1, max_size=7), chunk_counts, randoms)
def test_by_site_every_rank_gets_the_sum_whoever_is_where(
    num_elements: int, sites: list[str], num_chunks: int, random: Random
) -> None:
    before = [np.array([float(random.randrange(-1000, 1000)) for _ in range(num_elements)]) for _ in sites]
    for buffer in run(hierarchical(num_elements, sites, num_chunks), before, random):
        assert equal(buffer, in_rank_order(before))


@quick
@given(sizes, st.lists(st.integers(0, 3), min_size=1, max_size=7), chunk_counts, randoms)
def test_by_site_every_rank_of_every_run_gets_the_same_bits(
    num_elements: int, sites: list[int], num_chunks: int, random: Random
) -> None:
    before = buffers_of(len(sites), num_elements, random)
    transfers = hierarchical(num_elements, sites, num_chunks)
    first, *others = [*run(transfers, before, random), *run(transfers, before, random)]
    assert all(equal(buffer, first) for buffer in others)


@quick
@given(sizes, rank_counts, st.data(), randoms)
def test_reduce_gives_the_root_the_sum_and_leaves_the_others_alone(
    num_elements: int, num_ranks: int, data: st.DataObject, random: Random
) -> None:
    root = data.draw(st.integers(0, num_ranks - 1))
    before = buffers_of(num_ranks, num_elements, random)
    after = run(reduce(num_elements, num_ranks, root), before, random)
    for rank, buffer in enumerate(after):
        assert equal(buffer, in_rank_order(before) if rank == root else before[rank])


@quick
@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), randoms)
def test_reduce_scatter_gives_each_rank_its_part_of_the_sum(lengths: list[int], random: Random) -> None:
    num_ranks, ends = len(lengths), np.cumsum([0, *lengths]).tolist()
    parts = tuple(pairwise(ends))
    before = buffers_of(num_ranks, ends[-1], random)
    for (start, stop), buffer in zip(parts, run(reduce_scatter(parts), before, random), strict=True):
        assert equal(buffer[start:stop], in_rank_order(before)[start:stop])


@quick
@given(rank_counts, st.data(), randoms)
def test_gather_and_scatter_move_one_part_of_every_rank(num_ranks: int, data: st.DataObject, random: Random) -> None:
    root = data.draw(st.integers(0, num_ranks - 1))
    before = buffers_of(num_ranks, num_ranks, random)
    gathered = run(gather(num_ranks, root), before, random)
    assert gathered[root].tolist() == [before[rank][rank] for rank in range(num_ranks)]
    scattered = run(scatter(num_ranks, root), before, random)
    assert [scattered[rank][rank] for rank in range(num_ranks)] == before[root].tolist()


@quick
@given(rank_counts, randoms)
def test_all_to_all_gives_everyone_the_part_that_each_has_for_it(num_ranks: int, random: Random) -> None:
    before = buffers_of(num_ranks, num_ranks * num_ranks, random)
    for reader, buffer in enumerate(run(all_to_all(num_ranks), before, random)):
        for source in range(num_ranks):
            part = source * num_ranks + reader
            assert buffer[part] == before[source][part]


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
