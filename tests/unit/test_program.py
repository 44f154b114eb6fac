"""One rank's part of a transfer list, and whom it blames when nothing more comes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.comm.calls.buffers import PartBuffers
from zooid.comm.calls.call import Call
from zooid.comm.transport_protocol import Done, Landing, Message
from zooid.schedule.all_reduce_choice import ALL_REDUCE
from zooid.schedule.rank_program import RankProgram
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
    streaming,
    three_phase,
)

SIZE = 24
LISTS: dict[str, TransferList] = {
    "exchange": exchange(SIZE, 4),
    "three_phase": three_phase(SIZE, 4),
    "streaming": streaming(SIZE, 4, 3),
    "reduce": reduce(SIZE, 4, 1),
    "reduce_scatter": reduce_scatter(((0, 6), (6, 12), (12, 18), (18, 24))),
    "broadcast": broadcast(SIZE, 4, 1),
    "all_gather": all_gather(4, 4),
    "gather": gather(4, 1),
    "scatter": scatter(4, 1),
    "all_to_all": all_to_all(4),
}


class Ledger:
    """A transport on which a test says what has left and what has arrived."""

    def __init__(self) -> None:
        self.sent: dict[int, Done] = {}
        self.wanted: dict[int, tuple[int, Landing, Done]] = {}
        self.trouble = None

    def send(
        self, message: Message, data: memoryview, readers: object, done: Done, send_index: int | None = None
    ) -> None:
        self.sent[message.part] = done

    def receive(
        self,
        message: Message,
        source: int,
        num_bytes: int,
        landing: Landing,
        done: Done,
        expected_after: int | None = None,
        is_answer: bool = False,
    ) -> None:
        self.wanted[message.part] = (source, landing, done)


class Rank:
    """A call of one rank under way, whose sums are not computed."""

    def __init__(self, transfers: TransferList, rank: int) -> None:
        self.transport = Ledger()
        self.gone: set[int] = set()
        self.here: set[int] = set()
        part = torch.zeros(1)
        spans = {transfer.start: part for transfer in transfers}
        buffers = PartBuffers(spans, spans, lambda: None)
        buffers.add_up = lambda span, parts: None  # type: ignore[method-assign]
        self.call = Call("call", 0, RankProgram(transfers, rank), buffers, self.transport)  # type: ignore[arg-type]
        self.call.start()

    def run(self, delivered: set[int]) -> set[int]:
        """Let everything leave, and take what others have delivered; all that has left so far."""
        while True:
            leaving = self.transport.sent.keys() - self.gone
            arriving = (self.transport.wanted.keys() & delivered) - self.here
            if not leaving and not arriving:
                return self.gone
            self.gone |= leaving
            self.here |= arriving
            for part in sorted(leaving):
                self.transport.sent[part](None)
            for part in sorted(arriving):
                _, landing, done = self.transport.wanted[part]
                landing.take(memoryview(bytearray(4)), 0.0)
                done(None)


def run_without(transfers: TransferList, dead: int, num_ranks: int = 4) -> dict[int, Rank]:
    """All ranks but one make a call, as far as that goes."""
    ranks = {rank: Rank(transfers, rank) for rank in range(num_ranks) if rank != dead}
    delivered: set[int] = set()
    while True:
        before = set(delivered)
        for rank in ranks.values():
            delivered |= rank.run(delivered)
        if delivered == before:
            return ranks


@pytest.mark.parametrize("dead", range(4))
@pytest.mark.parametrize("name", LISTS)
def test_a_rank_that_sends_nothing_is_the_one_that_is_blamed(name: str, dead: int) -> None:
    for rank in run_without(LISTS[name], dead).values():
        assert rank.call.done.is_done or rank.call.missing_ranks == [dead]


@pytest.mark.parametrize("dead", range(4))
def test_around_a_ring_everyone_can_only_blame_its_neighbour(dead: int) -> None:
    for number, rank in run_without(ring(SIZE, 4), dead).items():
        assert rank.call.missing_ranks == [(number - 1) % 4]


@pytest.mark.parametrize("dead", range(4))
def test_in_a_round_only_who_belongs_to_it_is_blamed(dead: int) -> None:
    blamed = [rank.call.missing_ranks for rank in run_without(pipelined(SIZE, 4), dead).values()]
    assert [dead] in blamed
    assert all(len(ranks) == 1 for ranks in blamed)


@pytest.mark.parametrize("name", [*LISTS, "pipelined", "ring"])
def test_when_everyone_takes_part_every_call_ends(name: str) -> None:
    transfers = LISTS.get(name) or ALL_REDUCE[name](SIZE, 4)
    for rank in run_without(transfers, dead=-1).values():
        assert rank.call.done.is_done
        assert rank.call.done.error is None


@pytest.mark.parametrize("sites", ["aabb", "abab", "aaab", "abcd", "aaaa"])
def test_by_site_every_call_ends_too(sites: str) -> None:
    for rank in run_without(hierarchical(SIZE, sites, 2), dead=-1).values():
        assert rank.call.done.is_done
        assert rank.call.done.error is None


@settings(deadline=None)
@given(st.sampled_from(sorted(ALL_REDUCE)), st.integers(6, 60), st.integers(2, 6), st.data())
def test_a_program_has_every_send_and_every_take_of_its_rank_once(
    name: str, num_elements: int, num_ranks: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, num_ranks - 1))
    transfers = ALL_REDUCE[name](num_elements, num_ranks)
    program = RankProgram(transfers, rank)
    sends = [number for each in program.rounds for number in each.sends]
    takes = [number for each in program.rounds for number in each.takes]
    assert sorted(sends) == [number for number, transfer in enumerate(transfers) if transfer.source == rank]
    assert sorted(takes) == [number for number, transfer in enumerate(transfers) if rank in transfer.readers]
    assert program.num_actions == len(sends) + len(takes)
    reduced = {number for span in program.sums for number in span.parts}
    assert reduced == {number for number in takes if transfers[number].combine == "reduce"}
    assert [program.send_index[number] for number in sorted(sends)] == list(range(len(sends)))


def test_a_sum_waits_until_what_it_overwrites_has_left() -> None:
    program = RankProgram(exchange(SIZE, 3), 1)
    (span,) = program.sums
    assert (span.start, span.stop, span.parts, span.sent_before) == (0, SIZE, (0, 2), (1,))


def test_a_call_that_has_nothing_to_send_ends_at_once() -> None:
    call = Rank(exchange(SIZE, 1), 0).call
    assert call.done.is_done


def test_an_error_of_any_transfer_ends_the_call_and_what_still_comes_is_dropped() -> None:
    rank = Rank(exchange(SIZE, 3), 0)
    _, landing, done = rank.transport.wanted[1]
    done(ConnectionError("it is gone"))
    assert isinstance(rank.call.done.error, ConnectionError)
    _, landing, done = rank.transport.wanted[2]
    with pytest.raises(RuntimeError, match=r"call has ended"):
        landing.memory()
    done(None)
    assert isinstance(rank.call.done.error, ConnectionError)
