"""Messages as objects: damaged ones are noticed, a failing store is waited for, and the store is asked sparingly."""

import random
import threading
import time
import uuid
from collections import Counter as Tally
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from zooid.comm import Options, ProcessGroup
from zooid.comm.calls.work import Completion
from zooid.comm.rendezvous import meet
from zooid.comm.store import store_transport
from zooid.comm.store.store_transport import StoreTransport
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import COLLECTIVE, POINT_TO_POINT, Message
from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, DamagedMessage, StoreUnavailable
from zooid.store import ObjectStore, open_store

pytestmark = pytest.mark.timeout(30)

CONTENT = b"a message of some length"
FIRST = Message(POINT_TO_POINT, 0, 0)


def new_store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


class Spoiled:
    """A store of which some gets go wrong: `spoil` makes of each what it likes."""

    def __init__(self, inner: ObjectStore, spoil: Callable[[int, memoryview], memoryview], url: str = "") -> None:
        self.url = url or inner.url
        self.num_gets: Tally[str] = Tally()
        self._inner = inner
        self._spoil = spoil

    def get(self, key: str) -> memoryview:
        data = self._inner.get(key)
        self.num_gets[key] += 1
        return self._spoil(self.num_gets[key], data)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._inner, name)  # type: ignore[no-any-return]


class Memory:
    """Where a test's message lands."""

    def __init__(self, num_bytes: int = len(CONTENT)) -> None:
        self.data = bytearray(num_bytes)

    def memory(self) -> memoryview:
        return memoryview(self.data)

    def take(self, data: memoryview, began_s: float) -> None:
        self.data[:] = data


def pass_message(store: Any, message: Message = FIRST) -> tuple[Completion, Memory, Counter]:
    """Send a message from rank 0 to rank 1, whose side of it is returned."""
    sender = StoreTransport(store, "group", 0, timeout_s=10.0)
    receiver = StoreTransport(store, "group", 1, timeout_s=10.0)
    sent, received, memory = Completion(), Completion(), Memory()
    sender.send(message, memoryview(CONTENT), (1,), sent.end)
    receiver.receive(message, 0, len(CONTENT), memory, received.end)
    assert sent.wait(10)
    assert received.wait(10)
    for transport in (sender, receiver):
        transport.close(None)
    return received, memory, receiver.counter


def altered(data: memoryview) -> memoryview:
    copy = bytearray(data)
    copy[3] ^= 1
    return memoryview(copy)


@pytest.mark.parametrize(
    "spoil", [altered, lambda data: data[:-7], lambda data: data[:0]], ids=["altered", "cut", "empty"]
)
def test_a_message_that_is_damaged_on_its_way_is_read_again(spoil: Callable[[memoryview], memoryview]) -> None:
    store = Spoiled(new_store(), lambda nth, data: spoil(data) if nth < 4 else data)
    received, memory, counter = pass_message(store)
    assert received.error is None
    assert memory.data == CONTENT
    assert list(store.num_gets.values()) == [4]
    assert (counter.read().num_retries, counter.read().num_messages_received) == (3, 1)


@pytest.mark.parametrize("message", [FIRST, Message(COLLECTIVE, 0, 0, 0)], ids=["own", "call"])
def test_a_message_that_stays_damaged_is_reported_with_its_writer(message: Message) -> None:
    store = Spoiled(new_store(), lambda nth, data: altered(data))
    received, _, _ = pass_message(store, message)
    assert isinstance(received.error, DamagedMessage)
    assert "a message of rank 0, read 4 times: group/" in str(received.error)
    assert "its checksum does not fit its 24 bytes" in str(received.error)
    assert list(store.num_gets.values()) == [4]


def test_an_object_of_another_name_is_not_taken() -> None:
    """As if somebody had copied one message over another."""
    store = new_store()
    pass_message(store, Message(COLLECTIVE, 0, 0, 0))
    (key,) = store.list("group")
    wrong = bytes(store.get(key))
    received, _, _ = pass_message(Spoiled(store, lambda nth, data: memoryview(wrong)), Message(COLLECTIVE, 0, 1, 0))
    assert isinstance(received.error, DamagedMessage)


def test_a_store_that_fails_for_a_while_is_waited_for_and_named() -> None:
    troubles: list[str | None] = []

    def fail_at_first(nth: int, data: memoryview) -> memoryview:
        if nth < 6:
            raise StoreUnavailable("it is being restarted")
        return data

    store = Spoiled(new_store(), fail_at_first)
    received, memory = Completion(), Memory()
    sender = StoreTransport(store, "group", 0, timeout_s=10.0)
    receiver = StoreTransport(store, "group", 1, timeout_s=10.0)
    numbers = random.getstate()
    sender.send(FIRST, memoryview(CONTENT), (1,), lambda error: None)
    receiver.receive(FIRST, 0, len(CONTENT), memory, received.end)
    while not received.wait(0.005):
        troubles.append(receiver.trouble)
    assert random.getstate() == numbers, "what a job draws meanwhile follows from its own seeds"
    assert memory.data == CONTENT
    assert "it is being restarted" in troubles
    assert receiver.trouble is None
    assert receiver.counter.read().num_retries == 5


class Remote:
    """A store that looks like one far away: every request takes a while, and the poller does not take it for free."""

    def __init__(self, latency_s: float) -> None:
        self.url = "s3://far/away"
        self._inner = new_store()
        self._latency_s = latency_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            time.sleep(self._latency_s)
            return getattr(self._inner, name)(*arguments)

        return call


def groups_on(store: Any, num_ranks: int, prefix: str = "group", timeout_s: float = 20.0) -> list[ProcessGroup]:
    groups = []
    for rank in range(num_ranks):
        transport = StoreTransport(store, prefix, rank, timeout_s=timeout_s)
        groups.append(ProcessGroup(transport, rank, num_ranks, abort=Abort(), timeout_s=timeout_s, options=Options()))
    return groups


def play(groups: list[ProcessGroup], body: Callable[[ProcessGroup, int], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(body, groups, range(len(groups))))


def close(groups: list[ProcessGroup]) -> None:
    play(groups, lambda group, rank: group.shutdown())


@pytest.mark.parametrize("num_elements", [100, 30_000], ids=["small", "large"])
def test_in_a_steady_stream_few_requests_come_too_early(num_elements: int) -> None:
    groups = groups_on(Remote(0.003), 3)

    def body(group: ProcessGroup, rank: int) -> tuple[int, int]:
        for _ in range(40):
            group.allreduce([torch.ones(num_elements)]).wait()
        counted = group.counter.read()
        return counted.num_gets, counted.num_missed_gets

    for num_gets, num_missed in play(groups, body):
        assert num_gets == 40 * (2 if num_elements == 100 else 4)
        assert num_missed < 0.3 * num_gets
    close(groups)


def test_it_is_learned_how_far_a_rank_is_behind() -> None:
    """Rank 1 is always 30 ms late: at first it is asked for too early, later hardly ever."""
    groups = groups_on(Remote(0.002), 2)
    late = threading.Event()

    def body(group: ProcessGroup, rank: int) -> list[int]:
        missed = []
        for _ in range(40):
            if rank == 1:
                late.wait(0.03)
            group.allreduce([torch.ones(10)]).wait()
            missed.append(group.counter.read().num_missed_gets)
        return missed

    missed = play(groups, body)[0]
    assert missed[9] >= 1, "it had to be learned"
    assert missed[-1] - missed[19] <= 10, "of the last twenty, at most every other was asked for too early"
    close(groups)


def test_nothing_is_asked_for_again_and_again_while_nothing_comes() -> None:
    groups = groups_on(Remote(0.001), 2, timeout_s=1.0)
    with pytest.raises(CommTimeout, match="waited for rank 1"):
        groups[0].recv([torch.empty(1)], 1).wait()
    # every 20 ms at first, and then a tenth of the time that was waited
    assert groups[0].counter.read().num_missed_gets < 40
    close(groups)


def test_objects_of_a_crashed_run_are_never_taken() -> None:
    """A run that meets again in the same folder meets under another name."""
    store = new_store()

    def meet_all() -> str:
        with ThreadPoolExecutor(2) as pool:
            sessions = list(pool.map(lambda rank: meet(store, rank, 2, timeout_s=10.0, abort=Abort()), range(2)))
        assert sessions[0].prefix == sessions[1].prefix
        return f"{sessions[0].prefix}/group-0"

    crashed = groups_on(store, 2, meet_all())
    crashed[0].allreduce([torch.full((3,), 100.0)])
    crashed[0].send([torch.full((3,), 100.0)], 1).wait()
    while len(store.list("")) < 5:  # two messages, and the lobby
        time.sleep(0.001)
    for group in crashed:
        group.abort()
    left = set(store.list(""))

    def body(group: ProcessGroup, rank: int) -> list[float]:
        summed, passed = torch.ones(3), torch.full((3,), 5.0)
        group.allreduce([summed]).wait()
        (group.send([passed], 1) if rank == 0 else group.recv([passed], 0)).wait()
        return [*summed.tolist(), *passed.tolist()]

    groups = groups_on(store, 2, meet_all())
    assert play(groups, body) == [[2.0] * 3 + [5.0] * 3] * 2
    assert left <= set(store.list("")), "what the crashed run left was there all the time"
    close(groups)


def test_groups_of_one_run_do_not_take_each_others_messages() -> None:
    store = new_store()
    first, second = groups_on(store, 2, "run/group-0"), groups_on(store, 2, "run/group-1")

    def body(group: ProcessGroup, rank: int) -> float:
        tensor = torch.full((2,), 1.0 if group in first else 10.0)
        group.allreduce([tensor]).wait()
        return float(tensor[0])

    first[0].allreduce([torch.ones(2)])  # the other rank of this group is late
    assert play(second, body) == [20.0, 20.0]
    tensor = torch.ones(2)
    first[1].allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0, 2.0]
    close(first)
    close(second)


def test_an_object_is_deleted_when_all_its_readers_are_past_it_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_transport, "DELETE_AFTER_S", -1.0)
    store = new_store()
    transports = [StoreTransport(store, "group", rank, timeout_s=10.0) for rank in range(3)]

    def send(source: int, number: int, readers: tuple[int, ...]) -> None:
        done = Completion()
        transports[source].send(Message(COLLECTIVE, 0, number, source), memoryview(CONTENT), readers, done.end)
        assert done.wait(10)

    def receive(reader: int, number: int, source: int) -> None:
        done = Completion()
        message = Message(COLLECTIVE, 0, number, source)
        transports[reader].receive(message, source, len(CONTENT), Memory(), done.end)
        assert done.wait(10)

    send(0, 0, (1, 2))
    first = "group/calls/00000000-000000"
    receive(1, 0, 0)
    transports[0].finished(0)
    for reader in (1, 2):  # one after the other, readers say that they are past call 0, and rank 0 hears it
        assert first in store.list("group")
        transports[reader].finished(0)
        send(reader, reader, (0,))
        receive(0, reader, reader)
        transports[0].finished(reader)
    deadline_s = time.monotonic() + 10
    while first in store.list("group"):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    for transport in transports:
        transport.close(None)


def test_closing_in_peace_waits_for_what_is_on_its_way() -> None:
    gate = threading.Event()

    class Slow(Spoiled):
        def put(self, key: str, data: Any) -> None:
            gate.wait(10)
            self._inner.put(key, data)

    store = Slow(new_store(), lambda nth, data: data)
    transport = StoreTransport(store, "group", 0, timeout_s=10.0)
    transport.send(FIRST, memoryview(CONTENT), (1,), lambda error: None)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(transport.close, None)
        assert not closing.done()
        gate.set()
        closing.result(timeout=10)
    assert store.list("group") == ["group/messages/0-1/0/00000000"]
