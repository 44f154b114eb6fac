"""The door of a rank: strangers of all kinds, ranks that stall, and connections that are opened twice."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in its __all__

from lab.waiting import wait_until
from tests.unit.socket_groups import TCP, close, connect_all, summed
from zooid.comm import ObjectRendezvous, Options, ProcessGroup
from zooid.comm.tcp import admission, connect, dialer
from zooid.comm.tcp.admission import Admission
from zooid.comm.tcp.endpoint import Endpoint, decode_endpoint, decode_round_trip_s
from zooid.comm.tcp.handshake import (
    DONE,
    SETTLED,
    WELCOME_BYTES,
    Hello,
    confirm,
    is_confirm,
    is_welcome,
    welcome,
)
from zooid.core.abort import Abort
from zooid.core.errors import CommError, DamagedMessage, InputError
from zooid.store import open_store

pytestmark = pytest.mark.timeout(30)

SECRET = b"s" * 32
POINT = Endpoint(addresses=["10.0.0.7"], port=7, secret="ab" * 32, network="here", has_loopback=True)


class Waiting:
    """A group of two whose rank 0 waits at its door."""

    def __init__(self, store: Any, pool: ThreadPoolExecutor, first: "Future[ProcessGroup]") -> None:
        self._store = store
        self._pool = pool
        self._first = first
        store.wait(["tcp/0"])
        self.point = decode_endpoint(store.get("tcp/0"), 0)
        self.secret = bytes.fromhex(self.point.secret)

    def knock(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.point.port), 5.0)
        sock.settimeout(5.0)
        return sock

    def complete(self) -> float:
        """Let rank 1 come, check that the group works, and say how long the meeting took."""
        began_s = time.monotonic()
        second = self._pool.submit(make, self._store, 1)
        groups = [self._first.result(), second.result()]
        took_s = time.monotonic() - began_s
        assert summed(groups) == [2.0, 2.0]
        assert summed(groups, 600_000) == [2.0, 2.0]
        close(groups)
        return took_s


def make(store: Any, rank: int) -> ProcessGroup:
    abort = Abort()
    options = Options(transport="tcp", num_streams=2)
    transport, _ = connect(store, rank, 2, options, timeout_s=20.0, abort=abort)
    return ProcessGroup(transport, rank, 2, abort=abort, timeout_s=20.0, options=options)


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        yield Waiting(store, pool, pool.submit(make, store, 0))


def test_silent_strangers_hold_up_nobody_and_only_so_many_may_stand_there(waiting: Waiting) -> None:
    with ExitStack() as stack:
        strangers = [stack.enter_context(waiting.knock()) for _ in range(300)]
        assert strangers[0].recv(1) == b"", "the oldest had to go"
        assert waiting.complete() < 5.0


def drips(sock: socket.socket) -> bool:
    """Send one byte, slowly; False where the other end takes nothing any more."""
    time.sleep(0.05)
    try:
        sock.sendall(b"z")
    except OSError:
        return False
    return True


def test_a_stranger_has_one_deadline_for_all_that_it_drips(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_HELLO_S", 0.5)
    with waiting.knock() as dripping:
        began_s = time.monotonic()
        wait_until(lambda: not drips(dripping), timeout_s=10.0)
        assert 0.4 < time.monotonic() - began_s < 3.0
    assert waiting.complete() < 5.0


def test_dripping_strangers_hold_up_nobody(waiting: Waiting) -> None:
    stop = threading.Event()

    def drip(sock: socket.socket) -> None:
        while not stop.is_set() and drips(sock):
            pass

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(10))
        stack.callback(stop.set)
        for _ in range(10):
            pool.submit(drip, stack.enter_context(waiting.knock()))
        assert waiting.complete() < 5.0


def test_who_knows_the_secret_is_not_sent_away_for_strangers(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has said hello and stalls; then come more strangers than may stand at the door."""
    with ExitStack() as stack:
        slow = stack.enter_context(waiting.knock())
        hello = Hello.new(1, 0, 0, 0).pack(waiting.secret)
        slow.sendall(hello)
        answer = receive(slow, WELCOME_BYTES)
        strangers = [stack.enter_context(waiting.knock()) for _ in range(300)]
        assert strangers[0].recv(1) == b""
        slow.sendall(confirm(waiting.secret, hello, answer))
        assert receive(slow, len(SETTLED)) == SETTLED
        assert waiting.complete() < 5.0


def receive(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = sock.recv(num_bytes - len(data))
        assert more
        data += more
    return data


@pytest.mark.parametrize("last", ["hello", "confirm"])
def test_a_later_connection_replaces_those_before_it(waiting: Waiting, last: str) -> None:
    """An earlier rank 1 has opened stream 0, as far as it came, and was then heard of no more."""
    with waiting.knock() as abandoned:
        hello = Hello.new(1, 0, 0, 0).pack(waiting.secret)
        abandoned.sendall(hello)
        answer = receive(abandoned, WELCOME_BYTES)
        if last == "confirm":
            abandoned.sendall(confirm(waiting.secret, hello, answer))
            assert receive(abandoned, len(SETTLED)) == SETTLED
        assert waiting.complete() < 5.0
        assert abandoned.recv(1) == b""


@contextmanager
def stalling(monkeypatch: pytest.MonkeyPatch, method: str, num_s: float, after: int = 0) -> Iterator[list[str]]:
    """Let the door stall once, as a busy machine does, after so many calls of a method; the calls that there were."""
    original = getattr(Admission, method)
    called: list[str] = []

    def stall(self: Admission, *arguments: Any) -> None:
        called.append(method)
        if len(called) == after + 1:
            time.sleep(num_s)
        original(self, *arguments)

    monkeypatch.setattr(Admission, method, stall)
    yield called


@pytest.mark.parametrize("after", [0, 2], ids=["first stream", "last stream"])
@pytest.mark.parametrize("method", ["_accept", "_on_hello", "_on_confirm"])
def test_a_stall_while_ranks_meet_breaks_nothing(method: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 gives a connection up and opens another; both ranks must agree on which one counts."""
    monkeypatch.setattr(dialer, "_ATTEMPT_S", 0.3)
    with stalling(monkeypatch, method, 0.8, after) as called:
        groups = connect_all([HashStore()] * 2, Options(transport="tcp", num_streams=2), timeout_s=20.0)
    assert len(called) > after, "it has stalled"
    assert summed(groups) == [2.0] * 2
    assert summed(groups, 900_000) == [2.0] * 2
    close(groups)


def test_a_rank_waits_for_a_stalled_one_longer_than_for_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall of 3.5 s, which is more than connecting may take."""
    with stalling(monkeypatch, "_on_hello", 3.5, after=1):
        groups = connect_all([HashStore()] * 2, timeout_s=20.0)
    assert summed(groups) == [2.0] * 2
    close(groups)


def test_a_door_without_file_descriptors_opens_again(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[int] = []

    class Exhausted:
        def __init__(self, listener: socket.socket) -> None:
            self._listener = listener

        def __getattr__(self, name: str) -> Any:
            return getattr(self._listener, name)

        def accept(self) -> Any:
            if len(refused) < 3:
                refused.append(24)
                raise OSError(24, "Too many open files")
            return self._listener.accept()

    original = Admission._accept

    def accept(self: Admission) -> None:
        if not isinstance(self._listener, Exhausted):
            self._listener = Exhausted(self._listener)  # type: ignore[assignment]
        original(self)

    monkeypatch.setattr(Admission, "_accept", accept)
    with caplog.at_level(logging.WARNING):
        assert waiting.complete() < 5.0
    assert len(refused) == 3
    assert "Too many open files" in caplog.text


def test_what_a_rank_sends_while_others_are_missing_is_left_for_the_transport() -> None:
    """Rank 1 is done with its door and sends frames; rank 2 comes only then."""
    listener = socket.create_server(("127.0.0.1", 0))
    door = Admission(listener, SECRET, 0, range(1, 3))
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        admitting = pool.submit(door.admit_all, time.monotonic() + 20.0, 20.0, lambda: None)
        for rank in (1, 2):
            for number in (1, 0):
                sock = stack.enter_context(socket.create_connection(listener.getsockname(), 5.0))
                hello = Hello.new(rank, number, number, 0).pack(SECRET)
                sock.sendall(hello)
                sock.sendall(confirm(SECRET, hello, receive(sock, WELCOME_BYTES)))
                assert receive(sock, len(SETTLED)) == SETTLED
            assert not admitting.done()
            sock.sendall(DONE + b"first frame")
        admitting.result()
        for numbered in door.streams().values():
            for stream in numbered.values():
                stack.callback(stream.close)
            numbered[0].settimeout(5.0)
            assert receive(numbered[0], 11) == b"first frame"


class TestHandshake:
    hello = Hello.new(3, 1, 4, 2)

    def test_what_is_packed_comes_back(self) -> None:
        assert Hello.unpack(self.hello.pack(SECRET), SECRET) == self.hello

    def test_the_secret_is_never_sent(self) -> None:
        said = self.hello.pack(SECRET)
        answer = welcome(SECRET, said)
        assert SECRET[:8] not in said + answer + confirm(SECRET, said, answer)

    def test_only_who_knows_the_secret_is_believed(self) -> None:
        said = self.hello.pack(SECRET)
        answer = welcome(SECRET, said)
        with pytest.raises(DamagedMessage, match="does not know the secret"):
            Hello.unpack(said, b"t" * 32)
        assert is_welcome(answer, SECRET, said)
        assert not is_welcome(answer, b"t" * 32, said)
        assert not is_welcome(welcome(b"t" * 32, said), SECRET, said)
        assert is_confirm(confirm(SECRET, said, answer), SECRET, said, answer)
        assert not is_confirm(confirm(b"t" * 32, said, answer), SECRET, said, answer)

    def test_what_was_said_on_one_connection_is_worth_nothing_on_another(self) -> None:
        said, other = self.hello.pack(SECRET), Hello.new(3, 1, 4, 2).pack(SECRET)
        answer = welcome(SECRET, said)
        assert not is_welcome(answer, SECRET, other)
        assert not is_confirm(confirm(SECRET, said, answer), SECRET, said, welcome(SECRET, said))

    @pytest.mark.parametrize(("number", "num_streams"), [(2, 1), (1, 65), (65535, 65535)])
    def test_there_are_limits_to_streams(self, number: int, num_streams: int) -> None:
        with pytest.raises(DamagedMessage, match="there are at most 64"):
            Hello.unpack(Hello.new(1, number, num_streams, 0).pack(SECRET), SECRET)


def test_an_impostor_at_the_address_of_a_rank_is_not_believed() -> None:
    """It listens where rank 0 did, and answers something."""
    store = HashStore()
    with socket.create_server(("127.0.0.1", 0)) as impostor, ThreadPoolExecutor(1) as pool:
        point = Endpoint(
            addresses=["127.0.0.1"],
            port=impostor.getsockname()[1],
            secret=SECRET.hex(),
            network="elsewhere",
            has_loopback=False,
        )
        store.set("tcp/0", point.encode().decode())
        dialing = pool.submit(connect, store, 1, 2, TCP, timeout_s=1.0, abort=Abort())
        sock, _ = impostor.accept()
        with closing(sock):
            sock.sendall(bytes(WELCOME_BYTES))
            with pytest.raises(CommError, match="the answer came from a process that does not know the secret"):
                dialing.result()


def test_a_rank_listens_only_at_the_address_that_it_was_given() -> None:
    store = HashStore()
    given = Options(transport="tcp", address="127.0.0.1")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(connect, store, 0, 2, given, timeout_s=20.0, abort=Abort())
        store.wait(["tcp/0"])
        point = decode_endpoint(store.get("tcp/0"), 0)
        assert point.addresses == ["127.0.0.1"]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", point.port), 5.0).close()
        second, _ = connect(store, 1, 2, given, timeout_s=20.0, abort=Abort())
        for transport in (first.result()[0], second):
            transport.close("done")


def open_door(options: Options) -> None:
    connect(HashStore(), 0, 2, options, timeout_s=5.0, abort=Abort())


def test_an_address_that_the_network_translates_needs_one_to_listen_at() -> None:
    translated = "203.0.113.7"
    with pytest.raises(InputError, match=rf"`address` is '{translated}', but .*cannot listen there .*add `listen=0"):
        open_door(Options(transport="tcp", address=translated))
    store = HashStore()
    options = Options(transport="tcp", address=translated, listen="0.0.0.0")
    groups = connect_all([store] * 2, options)  # on one machine, the loopback device is tried first
    assert json.loads(store.get("tcp/0"))["addresses"] == [translated]
    assert summed(groups) == [2.0] * 2
    close(groups)


@pytest.mark.parametrize("given", ["not a host", "a" * 300, "256.1.1.1"])
def test_an_address_that_there_is_not_is_refused(given: str) -> None:
    with pytest.raises(InputError, match=r"`listen` is .*, but this machine cannot listen there"):
        open_door(Options(transport="tcp", listen=given))


class TestEndpoint:
    def test_what_is_published_comes_back(self) -> None:
        assert decode_endpoint(POINT.encode(), 0) == POINT

    @pytest.mark.parametrize(
        ("network", "candidates"), [("here", ["127.0.0.1", "10.0.0.7"]), ("elsewhere", ["10.0.0.7"])]
    )
    def test_the_loopback_device_is_tried_first_where_it_is_shared(self, network: str, candidates: list[str]) -> None:
        assert POINT.candidates(network) == candidates

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"{}", b"[1", b"\xff\xfe", b"[" * 50_000, b" " * 100_000,
            POINT.encode().replace(b'"port":7', b'"port":65536'),
            POINT.encode().replace(b'"port":7', b'"port":1e300'),
            POINT.encode().replace(b"abab", b"zzzz"),
            POINT.encode().replace(b'["10.0.0.7"]', b"[]"),
            POINT.encode().replace(b'["10.0.0.7"]', b'["' + b"a" * 300 + b'"]'),
        ],
        ids=range(11),
    )  # fmt: skip
    def test_what_cannot_be_read_is_refused_and_says_whose_it_is(self, data: bytes) -> None:
        store = HashStore()
        store.set("tcp/0", data.decode("latin1"))
        with pytest.raises(CommError, match="the endpoint of rank 0 in the rendezvous store cannot be read"):
            connect(store, 1, 2, TCP, timeout_s=5.0, abort=Abort())

    @pytest.mark.parametrize("data", [b"", b"nan", b"-1", b"inf", b"soon", b"1e9", b"\xff"])
    def test_a_round_trip_that_is_none_is_refused(self, data: bytes) -> None:
        with pytest.raises(CommError, match="the round trip of the group is given as"):
            decode_round_trip_s(data)
        assert decode_round_trip_s(b"0.25") == 0.25


def test_the_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/run")
    groups = connect_all([ObjectRendezvous(store, "comm/0/kept", timeout_s=10.0) for _ in range(2)])
    holding = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and b'"secret"' in path.read_bytes()]
    assert holding
    for path in holding:
        folders = [folder for folder in path.parents if folder.is_relative_to(tmp_path / "run" / "comm")]
        assert any(folder.stat().st_mode & 0o077 == 0 for folder in folders), "nobody else gets to it"
    close(groups)


def test_nothing_stays_open_when_a_meeting_fails() -> None:
    abort = Abort()
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(connect, store, 0, 2, TCP, timeout_s=20.0, abort=abort)
        store.wait(["tcp/0"])
        point = decode_endpoint(store.get("tcp/0"), 0)
        with socket.create_connection(("127.0.0.1", point.port), 5.0) as known:
            known.settimeout(5.0)
            known.sendall(Hello.new(1, 0, 0, 0).pack(bytes.fromhex(point.secret)))
            receive(known, WELCOME_BYTES)
            abort.set("enough")
            with pytest.raises(CommError, match="enough"):
                first.result(timeout=5)
            assert known.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", point.port), 5.0).close()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("zooid-connect")])
