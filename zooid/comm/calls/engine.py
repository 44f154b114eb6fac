"""The calls of one group that are in flight: begun in order, and all ended when anything goes wrong.

A group that failed once stays failed. Over TCP its peers are told, so no rank waits for a message that cannot come.
"""

import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from zooid.comm.calls.buffers import Buffers
from zooid.comm.calls.call import Call
from zooid.comm.calls.tensors import copy_bytes
from zooid.comm.calls.work import Completion
from zooid.comm.transport_protocol import POINT_TO_POINT, Done, Message, Transport, wrong_size
from zooid.core.abort import Abort
from zooid.core.errors import CommAborted, CommTimeout, PeerLost
from zooid.schedule.rank_program import RankProgram

_TICK_S = 0.25


@dataclass
class _Pending:
    """A call in flight, with its deadline."""

    name: str
    limit_s: float
    deadline_s: float
    done: Completion
    missing_ranks: Callable[[], list[int]]


class MemoryLanding:
    """The memory of a point-to-point receive."""

    def __init__(self, memory: memoryview, done: Completion) -> None:
        self._memory = memory
        self._done = done

    def memory(self) -> memoryview:
        if self._done.is_done:
            raise CommAborted("this receive has ended")
        if self._done.began_s is None:
            self._done.began_s = time.perf_counter()
        return self._memory

    def take(self, data: memoryview, began_s: float) -> None:
        if data.nbytes != self._memory.nbytes:
            raise wrong_size(data.nbytes, self._memory.nbytes)
        self._done.began_s = began_s
        copy_bytes(self.memory(), data)


class Engine:
    """Runs calls over a transport. All methods may be called from any thread."""

    def __init__(self, transport: Transport, rank: int, size: int, *, timeout_s: float, abort: Abort) -> None:
        self._rank = rank
        self._size = size
        self.timeout_s = timeout_s
        self._transport = transport
        self._abort = abort
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._is_closed = False
        self._pending: dict[int, _Pending] = {}
        self._num_pending_ever = 0
        self._num_collectives = 0
        self._finished: set[int] = set()
        self._watermark = -1
        self._num_messages: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        transport.on_failure = self.fail
        abort.on_set(self.abort)
        _watch(self)

    def reserve(self, count: int = 1) -> int:
        """Return the number of the next collective call; every rank makes the same calls in the same order."""
        with self._lock:
            number = self._num_collectives
            self._num_collectives += count
        return number

    def reserve_message(self, source: int, reader: int, tag: int) -> int:
        """Return the number of the next message between two ranks with this tag."""
        with self._lock:
            number = self._num_messages[source, reader, tag]
            self._num_messages[source, reader, tag] += 1
        return number

    def run(
        self, name: str, program: RankProgram, buffers: Buffers, number: int, timeout_s: float | None = None
    ) -> Completion:
        """Begin a collective call under the number that was reserved for it."""
        call = Call(f"{name} (call {number})", number, program, buffers, self._transport)
        call.done.then(lambda: self.finish_collective(number))
        if self._add(call.name, call.done, lambda: call.missing_ranks, timeout_s):
            call.start()
        return call.done

    def send(self, data: memoryview, reader: int, tag: int, number: int) -> Completion:
        done = Completion()
        message = Message(POINT_TO_POINT, tag, number)
        if self._add(f"send to rank {reader}", done, lambda: [reader]):
            self._transport.send(message, data, (reader,), done.end)
        return done

    def receive(self, memory: memoryview, source: int, tag: int, number: int, then: Callable[[], None]) -> Completion:
        """Begin to receive into this memory; `then` is called before the receive ends."""
        done = Completion()
        message = Message(POINT_TO_POINT, tag, number)
        if self._add(f"receive from rank {source}", done, lambda: [source]):
            self._transport.receive(message, source, memory.nbytes, MemoryLanding(memory, done), _ending(done, then))
        return done

    def receive_any(
        self, memory: memoryview, tag: int, on_source: Callable[[int], None], then: Callable[[], None]
    ) -> Completion:
        done = Completion()
        others = [rank for rank in range(self._size) if rank != self._rank]

        def candidates() -> list[tuple[int, Message]]:
            with self._lock:
                return [(n, Message(POINT_TO_POINT, tag, self._num_messages[n, self._rank, tag])) for n in others]

        def claim(source: int, message: Message) -> bool:
            with self._lock:
                if self._num_messages[source, self._rank, tag] != message.number:
                    return False
                self._num_messages[source, self._rank, tag] += 1
            on_source(source)
            return True

        if self._add("receive from any rank", done, lambda: others):
            landing = MemoryLanding(memory, done)
            self._transport.receive_any(candidates, claim, memory.nbytes, landing, _ending(done, then))
        return done

    def abort(self, reason: str) -> None:
        self.fail(CommAborted(reason))

    def fail(self, error: BaseException) -> None:
        """End all calls in flight and all later ones with this error.

        Peers are told first, since a waiter on this rank may end the process.
        """
        with self._lock:
            if self._error is not None or self._is_closed:
                return
            self._error = error
            pending = list(self._pending.values())
        cause = error.cause if isinstance(error, PeerLost) and error.cause else type(error).__name__
        self._transport.close(f"{cause}: {error}")
        for call in pending:
            call.done.end(error)

    def close(self) -> bool:
        """Leave the group and give up calls in flight. Return True on the first clean close."""
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            failed = self._error is not None
            self._error = self._error or CommAborted("the process group was destroyed")
            pending = list(self._pending.values())
        self._abort.forget(self.abort)
        if not failed:
            self._transport.close(None)  # first, so that nothing is written to the memory of a call that has ended
        for call in pending:
            call.done.end(self._error)
        return not failed

    def check_deadlines(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            late = next((call for call in self._pending.values() if call.deadline_s <= now_s), None)
        if late is not None and not late.done.is_done:
            ranks = late.missing_ranks()
            names = (
                ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks)) if ranks else "the transport"
            )
            self.fail(
                CommTimeout(
                    f"{late.name} on rank {self._rank} ran into its timeout of {late.limit_s:g} s while it waited for "
                    f"{names}; is {'it' if len(ranks) == 1 else 'each of them'} alive, and in the same call?"
                    + (f" The store fails: {self._transport.trouble}" if self._transport.trouble else "")
                )
            )

    def _add(
        self, name: str, done: Completion, missing: Callable[[], list[int]], timeout_s: float | None = None
    ) -> bool:
        """Register a call, or end it at once and return False where the group has failed before."""
        with self._lock:
            error = self._error
            if error is None:
                self._num_pending_ever += 1
                key = self._num_pending_ever
                limit_s = timeout_s or self.timeout_s
                self._pending[key] = _Pending(name, limit_s, time.monotonic() + limit_s, done, missing)
        if error is not None:
            done.end(error)
            return False
        done.then(lambda: self._remove(key, done))
        return True

    def _remove(self, key: int, done: Completion) -> None:
        with self._lock:
            self._pending.pop(key, None)
        if done.error is not None:
            self.fail(done.error)

    def finish_collective(self, number: int) -> None:
        """Note that a collective call has ended, or was rejected after its number was reserved."""
        with self._lock:
            self._finished.add(number)
            before = self._watermark
            while self._watermark + 1 in self._finished:
                self._watermark += 1
                self._finished.remove(self._watermark)
            after = self._watermark
        if after > before and self._error is None:
            self._transport.finished(after)


def _ending(done: Completion, then: Callable[[], None]) -> Done:
    def end(error: BaseException | None) -> None:
        if error is None:
            then()
        done.end(error)

    return end


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_watcher_lock = threading.Lock()
_watcher: tuple[int, threading.Thread] | None = None


def _watch(engine: Engine) -> None:
    """Let the process's one watcher thread check this engine's deadlines, so calls end even if nobody waits on them."""
    global _watcher
    with _watcher_lock:
        _engines.add(engine)
        if _watcher is None or _watcher[0] != os.getpid():
            thread = threading.Thread(target=_check_regularly, name="zooid-deadlines", daemon=True)
            _watcher = (os.getpid(), thread)
            thread.start()


def _check_regularly() -> None:
    while True:
        time.sleep(_TICK_S)
        with _watcher_lock:
            engines = list(_engines)
        for engine in engines:
            engine.check_deadlines()
        del engines
