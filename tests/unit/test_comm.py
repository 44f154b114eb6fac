"""Process groups over an object store: right numbers, equal on all ranks, and every wait ends."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ReduceOp

from zooid.comm import ProcessGroup
from zooid.comm.transport import StoreTransport
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommError, CommTimeout
from zooid.schedule.collectives import EXCHANGE_MAX_BYTES
from zooid.store import ObjectStore, open_store

Result = TypeVar("Result")

_numbers = count()
REDUCTIONS = [
    (operation, dtype)
    for operation in ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64)
    if operation != "AVG" or dtype.is_floating_point  # whole numbers have no mean
]


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://comm-{next(_numbers)}")


class Ranks:
    """Ranks of one process group, each of which a thread can play."""

    def __init__(self, store: ObjectStore, num_ranks: int, timeout_s: float = 20.0) -> None:
        self.groups = []
        for rank in range(num_ranks):
            abort = Abort()
            transport = StoreTransport(store, "group", timeout_s=timeout_s, abort=abort)
            self.groups.append(ProcessGroup(transport, rank, num_ranks, abort=abort))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for group in self.groups:
            group.abort()
        self.finish()

    def finish(self) -> None:
        """Wait for everything that was started, deletions included."""
        for group in self.groups:
            group.shutdown()

    def play(self, body: Callable[[ProcessGroup, int], Result]) -> list[Result]:
        """Run the body as every rank at the same time; its results in order, or the first error."""
        with ThreadPoolExecutor(len(self.groups)) as pool:
            return list(pool.map(body, self.groups, range(len(self.groups))))


def options(name: str) -> Any:
    result = dist.AllreduceOptions()
    result.reduceOp = getattr(ReduceOp, name)
    return result


def from_root(root: int) -> Any:
    result = dist.BroadcastOptions()
    result.rootRank = root
    return result


def tensor_of(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    """Small numbers other than zero, different on every rank."""
    generator = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        return (torch.rand(size, generator=generator) + 0.5).to(dtype)
    return torch.randint(1, 9, (size,), generator=generator).to(dtype)


def reduced(tensors: list[Tensor], operation: str) -> Tensor:
    """The plain result, in double precision."""
    stacked = torch.stack([tensor.double() for tensor in tensors])
    match operation:
        case "SUM":
            return stacked.sum(0)
        case "AVG":
            return stacked.mean(0)
        case "PRODUCT":
            return stacked.prod(0)
        case "MIN":
            return stacked.amin(0)
        case _:
            return stacked.amax(0)


def assert_same_bits(tensors: list[Tensor]) -> None:
    for tensor in tensors[1:]:
        assert torch.equal(tensor.contiguous().view(torch.uint8), tensors[0].contiguous().view(torch.uint8))


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize(("operation", "dtype"), REDUCTIONS, ids=str)
def test_all_reduce_gives_every_rank_the_same_right_numbers(
    store: ObjectStore, operation: str, dtype: torch.dtype, size: str
) -> None:
    num_elements = 17 if size == "small" else EXCHANGE_MAX_BYTES // dtype.itemsize + 5

    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = tensor_of(rank, num_elements, dtype)
        assert group.allreduce([tensor], options(operation)).wait()
        return tensor

    with Ranks(store, 3) as ranks:
        results = ranks.play(body)
    assert_same_bits(results)
    wanted = reduced([tensor_of(rank, num_elements, dtype) for rank in range(3)], operation)
    exact = torch.finfo(dtype).eps * 8 if dtype.is_floating_point else 0.0
    torch.testing.assert_close(results[0].double(), wanted, rtol=exact, atol=0)


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
@pytest.mark.parametrize("num_elements", [0, 1, 3, 40_001])
def test_all_reduce_works_for_any_number_of_ranks_and_elements(
    store: ObjectStore, num_ranks: int, num_elements: int
) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = torch.full((num_elements,), float(rank + 1))
        group.allreduce([tensor]).wait()
        return tensor

    with Ranks(store, num_ranks) as ranks:
        for result in ranks.play(body):
            assert torch.equal(result, torch.full((num_elements,), num_ranks * (num_ranks + 1) / 2))


@pytest.mark.parametrize("side", [4, 200], ids=["small", "large"])
def test_a_tensor_that_is_not_contiguous_is_reduced_in_place(store: ObjectStore, side: int) -> None:
    def body(group: ProcessGroup, rank: int) -> tuple[Tensor, Tensor]:
        whole = torch.arange(2.0 * side * side).view(side, 2 * side) * (rank + 1)
        tensor = whole[:, ::2].t()
        group.allreduce([tensor]).wait()
        return tensor, whole[:, 1::2]

    with Ranks(store, 2) as ranks:
        results = ranks.play(body)
    plain = torch.arange(2.0 * side * side).view(side, 2 * side)
    for rank, (tensor, neighbours) in enumerate(results):
        assert torch.equal(tensor, plain[:, ::2].t() * 3)
        assert torch.equal(neighbours, plain[:, 1::2] * (rank + 1)), "what lies between was not touched"


def test_calls_that_overlap_are_matched_in_call_order(store: ObjectStore) -> None:
    def body(group: ProcessGroup, rank: int) -> list[float]:
        tensors = [torch.full((3,), float(10**call * (rank + 1))) for call in range(4)]
        works = [group.allreduce([tensor]) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        return [float(tensor[0]) for tensor in tensors]

    with Ranks(store, 3) as ranks:
        assert ranks.play(body) == [[6.0, 60.0, 600.0, 6000.0]] * 3


def test_broadcast_gives_the_roots_tensor(store: ObjectStore) -> None:
    def body(group: ProcessGroup, rank: int) -> Tensor:
        tensor = torch.full((2, 3), float(rank))
        group.broadcast([tensor], from_root(1)).wait()
        return tensor

    with Ranks(store, 3) as ranks:
        for result in ranks.play(body):
            assert torch.equal(result, torch.ones(2, 3))


def test_a_slow_reader_still_gets_every_broadcast(store: ObjectStore) -> None:
    """The root does not wait for its readers, so that it must not delete what they have yet to read."""

    def send_or_receive(group: ProcessGroup, rank: int) -> list[float]:
        tensors = [torch.full((2,), float(call) if rank == 0 else -1.0) for call in range(4)]
        for tensor in tensors:
            group.broadcast([tensor], from_root(0)).wait()
        return [float(tensor[0]) for tensor in tensors]

    with Ranks(store, 2, timeout_s=1.0) as ranks:
        send_or_receive(ranks.groups[0], 0)
        ranks.groups[0].shutdown()  # whatever it deletes is deleted now
        assert send_or_receive(ranks.groups[1], 1) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("shape", [(2, 2), (0,), ()], ids=["matrix", "empty", "scalar"])
def test_all_gather_gives_everyones_tensor_to_everyone(store: ObjectStore, shape: tuple[int, ...]) -> None:
    def body(group: ProcessGroup, rank: int) -> list[Tensor]:
        outputs = [torch.empty(shape) for _ in range(3)]
        group.allgather([outputs], [torch.full(shape, float(rank))]).wait()
        return outputs

    with Ranks(store, 3) as ranks:
        for outputs in ranks.play(body):
            for rank, output in enumerate(outputs):
                assert torch.equal(output, torch.full(shape, float(rank)))


def test_a_barrier_holds_until_everyone_has_come(store: ObjectStore) -> None:
    with Ranks(store, 3) as ranks:
        early = [group.barrier() for group in ranks.groups[:2]]
        assert not any(work.is_completed() for work in early)
        ranks.groups[2].barrier().wait()
        assert all(work.wait() for work in early)


def test_messages_find_the_receive_with_their_tag(store: ObjectStore) -> None:
    def send(group: ProcessGroup, tag: int, value: float) -> None:
        group.send([torch.full((3,), value)], 1, tag).wait()

    def receive(group: ProcessGroup, tag: int) -> float:
        tensor = torch.empty(3)
        group.recv([tensor], 0, tag).wait()
        return float(tensor[2])

    with Ranks(store, 2) as ranks:
        sender, receiver = ranks.groups
        for tag, value in ((1, 10.0), (2, 20.0), (1, 11.0)):
            send(sender, tag, value)
        assert [receive(receiver, tag) for tag in (2, 1, 1)] == [20.0, 10.0, 11.0]


def test_a_receive_may_be_posted_before_its_send(store: ObjectStore) -> None:
    with Ranks(store, 2) as ranks:
        wide = torch.zeros(4, 4)
        works = [ranks.groups[1].recv([wide[:, column]], 0, column) for column in range(4)]
        for column in (3, 1, 0, 2):
            ranks.groups[0].send([torch.full((4,), float(column))], 1, column)
        for work in works:
            work.wait()
        assert torch.equal(wide, torch.arange(4.0).expand(4, 4))
        ranks.finish()
    assert store.list("group") == [], "a message that was taken is deleted"


def test_many_posted_receives_do_not_stop_a_send(store: ObjectStore) -> None:
    """The peer sends only after it has heard from us; however many receives wait, that message must go out."""
    num_messages = 80
    with Ranks(store, 2, timeout_s=2.0) as ranks:
        first, second = ranks.groups
        tensors = [torch.empty(1) for _ in range(num_messages)]
        works = [first.recv([tensor], 1, tag) for tag, tensor in enumerate(tensors)]
        first.send([torch.ones(1)], 1, 0)
        second.recv([torch.empty(1)], 0, 0).wait()
        for tag in range(num_messages):
            second.send([torch.full((1,), float(tag))], 0, tag)
        for work in works:
            work.wait()
        assert [int(tensor) for tensor in tensors] == list(range(num_messages))


def test_a_message_of_another_size_is_refused(store: ObjectStore) -> None:
    with Ranks(store, 2) as ranks:
        ranks.groups[0].send([torch.ones(3)], 1).wait()
        with pytest.raises(CommError, match="a message of 12 bytes arrived where 8 were expected"):
            ranks.groups[1].recv([torch.empty(2)], 0).wait()


@pytest.mark.parametrize(("operation", "dtype"), [("BXOR", torch.int64), ("BAND", torch.int64), ("AVG", torch.int64)])
def test_what_cannot_be_reduced_is_refused(store: ObjectStore, operation: str, dtype: torch.dtype) -> None:
    def body(group: ProcessGroup, rank: int) -> None:
        with pytest.raises(CommError, match="cannot"):
            group.allreduce([torch.ones(3, dtype=dtype)], options(operation)).wait()

    with Ranks(store, 2) as ranks:
        ranks.play(body)


def test_what_a_call_cannot_take_is_refused_at_once(store: ObjectStore) -> None:
    with Ranks(store, 2) as ranks:
        group = ranks.groups[0]
        with pytest.raises(CommError, match="all_reduce takes one tensor per call, not 2"):
            group.allreduce([torch.ones(1), torch.ones(1)])
        with pytest.raises(CommError, match="send on meta: the backend zooid moves CPU tensors"):
            group.send([torch.ones(1, device="meta")], 1)


def abort_soon(group: ProcessGroup) -> float:
    """Abort a group after a moment; returns when that was."""
    time.sleep(0.05)
    group.abort()
    return time.monotonic()


@pytest.mark.parametrize("call", ["recv", "allreduce", "barrier"])
def test_an_abort_frees_every_wait_at_once(store: ObjectStore, call: str) -> None:
    with Ranks(store, 2, timeout_s=60.0) as ranks, ThreadPoolExecutor(1) as another_thread:
        group = ranks.groups[0]
        arguments = {"recv": ([torch.empty(1)], 1), "allreduce": ([torch.ones(1)],), "barrier": ()}[call]
        work = getattr(group, call)(*arguments)
        aborted_s = another_thread.submit(abort_soon, group)
        with pytest.raises(CommAborted, match="the process group was aborted"):
            work.wait()
        freed_s = time.monotonic()
        assert freed_s - aborted_s.result() < 0.2


def test_a_peer_that_never_sends_is_named(store: ObjectStore) -> None:
    with Ranks(store, 3, timeout_s=0.1) as ranks:
        with pytest.raises(CommTimeout, match=r"rank 2 did not deliver messages/2-0/0/00000000 .* within 0.1 s"):
            ranks.groups[0].recv([torch.empty(1)], 2).wait()
        works = [group.allreduce([torch.ones(1)]) for group in ranks.groups[:2]]
        for work in works:
            with pytest.raises(CommTimeout, match="rank 2 did not deliver 00000000-all_reduce"):
                work.wait()


def test_a_wait_may_end_before_the_call_does(store: ObjectStore) -> None:
    with Ranks(store, 2) as ranks:
        tensor = torch.zeros(1)
        work = ranks.groups[0].recv([tensor], 1)
        with pytest.raises(CommTimeout, match=r"receive from rank 1 was not finished within 0.05 s"):
            work.wait(timedelta(seconds=0.05))
        assert (work.is_completed(), work.is_success(), work.exception()) == (False, False, None)
        ranks.groups[1].send([torch.ones(1)], 0)
        assert work.get_future().wait()[0] is tensor
        assert (work.is_completed(), work.is_success(), float(tensor)) == (True, True, 1.0)


def test_a_failed_call_shows_in_its_handle(store: ObjectStore) -> None:
    with Ranks(store, 2, timeout_s=0.05) as ranks:
        work = ranks.groups[0].recv([torch.empty(1)], 1)
        future = work.get_future()
        with pytest.raises(CommTimeout, match="rank 1 did not deliver"):
            future.wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), CommTimeout)


@pytest.mark.parametrize("num_elements", [10, 40_000], ids=["small", "large"])
def test_objects_of_earlier_collectives_are_deleted(store: ObjectStore, num_elements: int) -> None:
    def body(group: ProcessGroup, rank: int) -> None:
        for _ in range(20):
            group.allreduce([torch.ones(num_elements)]).wait()

    with Ranks(store, 3) as ranks:
        ranks.play(body)
        ranks.finish()
    left = store.list("group")
    assert {name.split("/")[1] for name in left} <= {"00000018-all_reduce", "00000019-all_reduce"}
    assert len(left) <= 2 * 3 * 3
