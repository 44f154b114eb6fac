"""Process groups over every transport when something goes wrong: every wait ends, and says why."""

import gc
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from lab.faults import Faults, FaultyStore, Rates
from tests.contract.groups import PREFIX, OpenRanks, Ranks, reducing, rooted, until, value_of, values_of
from tests.contract.stores import new_memory
from zooid.comm import Options, ProcessGroup
from zooid.comm.store.store_transport import StoreTransport
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommError, CommTimeout, PeerLost

pytestmark = pytest.mark.timeout(30)

SMALL, LARGE = 5, 30_000
Start = Callable[[ProcessGroup], Any]
WAITING: dict[str, Start] = {
    "recv": lambda group: group.recv([torch.empty(SMALL)], 1),
    "recv of something large": lambda group: group.recv([torch.empty(LARGE)], 1),
    "recv from any": lambda group: group.recv_anysource([torch.empty(SMALL)]),
    "all_reduce": lambda group: group.allreduce([torch.ones(SMALL)]),
    "large all_reduce": lambda group: group.allreduce([torch.ones(LARGE)]),
    "reduce": lambda group: group.reduce([torch.ones(SMALL)], rooted(dist.ReduceOptions, 0)),
    "broadcast": lambda group: group.broadcast([torch.ones(SMALL)], rooted(dist.BroadcastOptions, 1)),
    "barrier": lambda group: group.barrier(),
    "coalesced": lambda group: group.all_gather_single_coalesced([torch.ones(2 * SMALL)], [torch.ones(SMALL)]),
}


@pytest.mark.parametrize("call", WAITING)
def test_an_abort_frees_every_wait_at_once(open_ranks: OpenRanks, call: str) -> None:
    with open_ranks(2, timeout_s=60.0) as ranks, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(WAITING[call](ranks.groups[0]).wait)
        until(waiting.running)
        began_s = time.monotonic()
        ranks.groups[0].abort()
        with pytest.raises(CommAborted, match="the process group was aborted"):
            waiting.result()
        assert time.monotonic() - began_s < 0.5
        with pytest.raises(CommAborted, match="the process group was aborted"):
            ranks.groups[0].barrier().wait()


def test_whoever_ends_the_run_frees_its_groups(open_ranks: OpenRanks) -> None:
    with open_ranks(2, timeout_s=60.0) as ranks:
        works = [start(ranks.groups[0]) for start in WAITING.values()]
        ranks.aborts[0].set("the run is over")
        for work in works:
            with pytest.raises(CommAborted, match="the run is over"):
                work.wait()


def test_a_peer_that_never_sends_is_named(open_ranks: OpenRanks) -> None:
    with open_ranks(3, timeout_s=0.2) as ranks:
        why = r"receive from rank 2 on rank 0 ran into its timeout of 0.2 s while it waited for rank 2"
        with pytest.raises(CommTimeout, match=why):
            ranks.groups[0].recv([torch.empty(1)], 2).wait()


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_peer_that_makes_no_call_is_named(open_ranks: OpenRanks, size: int) -> None:
    with open_ranks(3, timeout_s=0.5) as ranks:
        works = [group.allreduce([torch.ones(size)]) for group in ranks.groups[:2]]
        reasons = []
        for work in works:
            with pytest.raises(CommError, match=r"all_reduce \(call 0\) on rank \d ran into its timeout") as failure:
                work.wait()
            reasons.append(str(failure.value))
        assert all("while it waited for rank 2; is it alive" in reason for reason in reasons)


def test_a_call_may_have_a_limit_of_its_own(open_ranks: OpenRanks) -> None:
    with open_ranks(2, timeout_s=60.0) as ranks:
        work = ranks.groups[0].allreduce([torch.ones(1)], reducing("SUM", timeout=timedelta(seconds=0.1)))
        with pytest.raises(CommTimeout, match=r"ran into its timeout of 0.1 s while it waited for rank 1"):
            work.wait()


def test_a_wait_may_end_before_the_call_does(open_ranks: OpenRanks) -> None:
    with open_ranks(2) as ranks:
        tensor = torch.zeros(1)
        work = ranks.groups[0].recv([tensor], 1)
        with pytest.raises(CommTimeout, match=r"recv was not finished within 0.05 s"):
            work.wait(timedelta(seconds=0.05))
        assert (work.is_completed(), work.is_success(), work.exception()) == (False, False, None)
        ranks.groups[1].send([torch.ones(1)], 0)
        assert work.get_future().wait()[0] is tensor
        assert (work.is_completed(), work.is_success(), float(tensor)) == (True, True, 1.0)


def test_a_failed_call_shows_in_its_handle_and_its_future(open_ranks: OpenRanks) -> None:
    with open_ranks(2, timeout_s=0.1) as ranks:
        work = ranks.groups[0].recv([torch.empty(1)], 1)
        future = work.get_future()
        with pytest.raises(CommTimeout, match="waited for rank 1"):
            future.wait()
        assert (work.is_completed(), work.is_success()) == (True, False)
        assert isinstance(work.exception(), CommTimeout)
        with pytest.raises(CommTimeout, match="waited for rank 1"):
            work.result()


def test_one_failed_call_fails_those_that_were_joined_with_it(open_ranks: OpenRanks) -> None:
    with open_ranks(2, timeout_s=0.2) as ranks:
        group = ranks.groups[0]
        group._start_coalescing(torch.device("cpu"))
        group.send([torch.ones(1)], 1)
        group.recv([torch.ones(1)], 1)
        work = group._end_coalescing(torch.device("cpu"))
        with pytest.raises(CommTimeout, match="receive from rank 1"):
            work.wait()


def test_a_group_that_was_left_takes_no_more_calls(open_ranks: OpenRanks) -> None:
    with open_ranks(2) as ranks:
        waiting = ranks.groups[0].recv([torch.empty(1)], 1)
        ranks.leave()
        for work in (waiting, ranks.groups[0].barrier()):
            with pytest.raises(CommError, match=r"the process group was destroyed|rank 1 has left the group"):
                work.wait()


SIZES = [(3, 2), (0, 2), (3, LARGE), (LARGE, 3), (LARGE, LARGE + 1)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_call_with_tensors_of_different_sizes_is_refused(open_ranks: OpenRanks, sizes: tuple[int, int]) -> None:
    """By the rank that gets what it does not expect, at once."""
    with open_ranks(2, timeout_s=1.0) as ranks:
        options = rooted(dist.BroadcastOptions, 0)
        ranks.groups[0].broadcast([torch.ones(sizes[0])], options)
        work = ranks.groups[1].broadcast([torch.empty(sizes[1])], options)
        why = f"a message of {4 * sizes[0]} bytes arrived.* where {4 * sizes[1]} were expected: do all ranks"
        with pytest.raises(CommError, match=why):
            work.wait()


def test_what_a_call_cannot_take_is_refused_at_once_and_the_group_goes_on(open_ranks: OpenRanks) -> None:
    one, two = torch.ones(1), torch.ones(2)
    refused: list[tuple[str, Start]] = [
        ("all_reduce takes one tensor per call, not 2", lambda group: group.allreduce([one, two])),
        ("all_gather has 1 outputs for 2 ranks; it needs one for each", lambda group: group.allgather([[one]], [one])),
        ("must have 2 times as many as the smaller", lambda group: group.all_gather_single(torch.ones(3), one)),
        ("reduce_scatter has 3 inputs for 2 ranks", lambda group: group.reduce_scatter([one], [[one, one, one]])),
        (
            "cannot split its input of length 3 evenly",
            lambda group: group.all_to_all_single(two, torch.ones(3), [], []),
        ),
        ("2 splits, which sum to the length", lambda group: group.all_to_all_single(two, two, [1, 1], [2, 2])),
        ("tensors of one type", lambda group: group.allreduce_coalesced([one, one.double()], reducing("SUM"))),
    ]

    def body(group: ProcessGroup, rank: int) -> float:
        for why, call in refused:
            with pytest.raises(ValueError, match=why):
                call(group)
        tensor = torch.ones(1)
        group.allreduce([tensor]).wait()
        return float(tensor)

    with open_ranks(2) as ranks:
        assert ranks.play(body) == [2.0, 2.0]


@pytest.mark.parametrize("num_elements", [10, 40_000], ids=["small", "large"])
def test_objects_of_earlier_calls_are_deleted(open_ranks: OpenRanks, num_elements: int) -> None:
    def body(group: ProcessGroup, rank: int) -> None:
        for _ in range(150):
            group.allreduce([torch.ones(num_elements)]).wait()

    with open_ranks(2) as ranks:
        ranks.play(body)
        until(lambda: len(ranks.objects) < 150)
        if ranks.store is not None:
            assert all(group.counter.read().num_deletes <= 5 for group in ranks.groups), (
                "many objects go in one request"
            )


def test_a_call_that_was_refused_does_not_keep_objects_from_being_deleted(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> None:
        with pytest.raises(CommError, match="cannot be averaged"):
            group.allreduce([torch.ones(1, dtype=torch.int64)], reducing("AVG"))
        for _ in range(150):
            group.allreduce([torch.ones(1)]).wait()

    with open_ranks(2) as ranks:
        ranks.play(body)
        until(lambda: len(ranks.objects) < 150, limit_s=0.5)


def test_a_message_that_was_refused_does_not_count(open_ranks: OpenRanks) -> None:
    with open_ranks(2, timeout_s=0.5) as ranks:
        with pytest.raises(ValueError, match="send takes one tensor per call, not 2"):
            ranks.groups[0].send([torch.ones(1), torch.ones(1)], 1)
        ranks.groups[0].send([torch.ones(1)], 1)
        ranks.groups[1].recv([torch.empty(1)], 0).wait()


def test_memory_is_free_when_a_call_has_ended(open_ranks: OpenRanks) -> None:
    def body(group: ProcessGroup, rank: int) -> "list[weakref.ref[Any]]":
        arrays = [np.ones(LARGE, np.float32) for _ in range(3)]
        reduced, told, passed = (torch.from_numpy(array) for array in arrays)
        group.allreduce([reduced]).wait()
        group.broadcast([told], rooted(dist.BroadcastOptions, 0)).wait()
        (group.send([passed], 1) if rank == 0 else group.recv([passed], 0)).wait()
        return [weakref.ref(array) for array in arrays]

    def is_free() -> bool:
        gc.collect()
        return not any(kept() is not None for kept in references)

    with open_ranks(2) as ranks:
        references = [kept for of_rank in ranks.play(body) for kept in of_rank]
        until(is_free, limit_s=5.0)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_a_monitored_barrier_names_who_is_missing_and_does_no_harm(open_ranks: OpenRanks, wait_all_ranks: bool) -> None:
    limit = timedelta(seconds=0.2)

    def wait(group: ProcessGroup, rank: int) -> str:
        with pytest.raises(CommTimeout) as failure:
            group.monitored_barrier(limit, wait_all_ranks)
        return str(failure.value)

    def pass_together(group: ProcessGroup, rank: int) -> float:
        group.monitored_barrier(timedelta(seconds=20))
        tensor = torch.ones(1)
        group.allreduce([tensor]).wait()
        return float(tensor)

    with open_ranks(4) as ranks:
        told = ranks.play(wait, ranks=[0, 2])
        named = "Ranks 1, 3" if wait_all_ranks else "Rank 1"
        assert told[0] == f"{named} failed to pass monitoredBarrier in 0.2 s"
        assert "from rank 0, which did not let it go within 0.2 s; rank 0 knows which ranks are missing" in told[1]
        for late in (1, 3):
            ranks.groups[late]._num_monitored = 1  # they missed the first
        assert ranks.play(pass_together) == [4.0] * 4


@pytest.mark.parametrize("open_ranks", ["tcp"], indirect=True)
class TestSockets:
    def test_a_rank_that_gives_up_tells_the_others_why(self, open_ranks: OpenRanks) -> None:
        with open_ranks(3, timeout_s=60.0) as ranks:
            works = [group.allreduce([torch.ones(LARGE)]) for group in ranks.groups[:2]]
            ranks.aborts[2].set("its machine is being taken away")
            for work in works:
                with pytest.raises(PeerLost, match="rank 2 gave up: CommAborted: its machine is being taken away"):
                    work.wait()

    def test_what_was_to_come_from_a_rank_that_left_does_not(self, open_ranks: OpenRanks) -> None:
        with open_ranks(3, timeout_s=60.0) as ranks:
            waiting = ranks.groups[0].recv([torch.empty(SMALL)], 1)
            ranks.groups[1].send([torch.ones(SMALL)], 2).wait()
            ranks.groups[1].shutdown()
            with pytest.raises(PeerLost, match="rank 1 has left the group"):
                waiting.wait()

    def test_what_a_rank_sent_before_it_left_arrives(self, open_ranks: OpenRanks) -> None:
        with open_ranks(2, timeout_s=60.0) as ranks, ThreadPoolExecutor(1) as pool:
            sent = [ranks.groups[1].send([torch.full((SMALL,), float(n))], 0) for n in range(200)]
            leaving = pool.submit(ranks.groups[1].shutdown)
            received = torch.empty(200, SMALL)
            leaving.result()
            for row in received:
                ranks.groups[0].recv([row], 1).wait()
            assert all(work.is_success() for work in sent)
            assert torch.equal(received[:, 0], torch.arange(200.0))


class TestFailingStores:
    def faulty_ranks(self, faults: Faults, timeout_s: float = 20.0) -> tuple[Ranks, FaultyStore]:
        store = FaultyStore(new_memory(), faults, seed=3)
        aborts, groups = [Abort() for _ in range(3)], []
        for rank in range(3):
            transport = StoreTransport(store, PREFIX, rank, timeout_s=timeout_s)
            group = ProcessGroup(transport, rank, 3, abort=aborts[rank], timeout_s=timeout_s, options=Options())
            groups.append(group)
        return Ranks(groups, aborts, store), store

    def test_a_store_that_fails_now_and_then_changes_no_number(self) -> None:
        rates = Rates(error=0.15, lost_response=0.15)

        def body(group: ProcessGroup, rank: int) -> list[Tensor]:
            tensors = [values_of(rank, size) for size in (SMALL, LARGE) * 5]
            for work in [group.allreduce([tensor]) for tensor in tensors]:
                work.wait()
            passed = torch.full((SMALL,), float(rank))
            sending = group.send([passed], (rank + 1) % 3)
            received = torch.empty(SMALL)
            group.recv([received], (rank - 1) % 3).wait()
            sending.wait()
            return [*tensors, received]

        ranks, store = self.faulty_ranks(Faults.everywhere(rates))
        with ranks:
            results = ranks.play(body)
            num_retries = sum(group.counter.read().num_retries for group in ranks.groups)
        for rank, of_rank in enumerate(results):
            for tensor, size in zip(of_rank, (SMALL, LARGE) * 5, strict=False):
                assert torch.equal(tensor, values_of(0, size) + values_of(1, size) + values_of(2, size))
            assert value_of(of_rank[-1]) == (rank - 1) % 3
        names = ("put.error", "put.lost_response", "get.error", "get.lost_response")
        assert all(store.counts[name] > 2 for name in names)
        assert num_retries >= sum(store.counts[name] for name in names)

    def test_a_store_that_goes_on_failing_is_blamed(self) -> None:
        ranks, store = self.faulty_ranks(Faults(get=Rates(error=1)), timeout_s=0.5)
        with ranks:
            works = [group.allreduce([torch.ones(SMALL)]) for group in ranks.groups]
            for work in works:
                with pytest.raises(CommTimeout, match=r"The store fails: injected: get of .* failed"):
                    work.wait()
        assert store.counts["get.error"] > 3

    def test_a_store_that_takes_nothing_is_blamed(self) -> None:
        ranks, store = self.faulty_ranks(Faults(put=Rates(error=1)), timeout_s=0.5)
        with ranks:
            work = ranks.groups[0].send([torch.ones(SMALL)], 1)
            with pytest.raises(Exception, match=r"injected: put of .* failed|ran into its timeout"):
                work.wait()
        assert store.counts["put.error"] > 3
