"""A separate process that fetches shards for the process that reads them.

The client of a store does not survive a fork, and processes that read samples are forked from a member that has used
it. So a process that misses a shard starts a fetcher, a new interpreter without torch. It waits for shards that it
needs now, and does not wait for later ones. A fetcher ends when its pipe is closed, so never after the process that
started it, and uses neither the GIL nor the memory of the training process.
"""

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from zooid.core import errors
from zooid.core.errors import StoreError, ZooidError
from zooid.core.runs.shard import TarShard
from zooid.store.fetch_log import append_fetch, fetch_log
from zooid.store.objects import open_store
from zooid.store.request_counts import RequestCounts, counts_of
from zooid.store.shards.cache import ShardCache

_NUM_AT_ONCE = 4
"""Number of concurrent fetches: one stream does not fill a long link, and a window begins with several shards."""


class _Request(msgspec.Struct, frozen=True):
    shard: TarShard
    is_needed: bool
    """Whether the requester waits for an answer."""


class _Answer(msgspec.Struct, frozen=True):
    error: str = ""
    """The class name of a ZooidError if the fetch failed, else empty."""
    message: str = ""


@dataclass
class _Session:
    """The fetcher of one process; a forked child does not inherit it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    process: "subprocess.Popen[bytes] | None" = None


class Fetcher:
    """Asks a fetcher process, which is started when needed, to fetch shards into the cache."""

    def __init__(self, url: str, cache: ShardCache) -> None:
        self._command = [sys.executable, "-m", "zooid.store.shards", url, str(cache.folder), str(cache.max_bytes or "")]
        self._sessions: dict[int, _Session] = {}
        fetch_log()  # before any process is forked that would open another one
        self._finalizer = weakref.finalize(self, _end, self._sessions)

    def need(self, shard: TarShard) -> None:
        """Wait until a shard is in the cache; raise the error of a failed fetch."""
        session = self._session()
        with session.lock:
            process = self._running(session)
            assert process.stdout is not None
            line = process.stdout.readline() if _send(process, _Request(shard, True)) else b""
            if not line:
                raise StoreError(
                    f"the process that fetches shards ended with exit status {process.wait()} while it fetched "
                    f"{shard.key!r}; if it was killed, check whether the machine ran out of memory"
                )
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise getattr(errors, answer.error)(answer.message)

    def expect(self, shards: Iterable[TarShard]) -> None:
        """Fetch shards in the background; errors are raised when a shard is needed."""
        session = self._session()
        with session.lock:
            for shard in shards:
                _send(self._running(session), _Request(shard, False))

    def close(self) -> None:
        """End the fetcher of this process; it is started again when needed."""
        _end(self._sessions)

    def _session(self) -> _Session:
        return self._sessions.setdefault(os.getpid(), _Session())

    def _running(self, session: _Session) -> "subprocess.Popen[bytes]":
        if session.process is None or session.process.poll() is not None:
            _close_pipes(session.process)
            log = fetch_log()
            session.process = subprocess.Popen(
                [*self._command, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(log,)
            )
        return session.process


def serve(url: str, folder: str, max_bytes: str, log: str) -> None:
    """The program of a fetcher: it serves requests from standard input, needed shards first, until that is closed.

    `log` is the descriptor of the file to which it appends its fetches.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted parent ends this process by closing the pipe
    threading.excepthook = _exit_with_traceback
    store = open_store(url)
    cache = ShardCache(Path(folder), int(max_bytes) if max_bytes else None)
    requests: queue.PriorityQueue[tuple[bool, int, _Request]] = queue.PriorityQueue()
    lock = threading.Lock()
    logged = RequestCounts()

    def note_fetches() -> None:
        nonlocal logged
        with lock:
            before, logged = logged, counts_of(store)
            num_gets, num_bytes = logged.num_gets - before.num_gets, logged.received_bytes - before.received_bytes
            if num_gets:
                append_fetch(int(log), num_gets, num_bytes)

    def work() -> None:
        while True:
            request = requests.get()[2]
            answer = _Answer()
            try:
                cache.fetch(store, request.shard)
            except ZooidError as error:
                answer = _Answer(type(error).__name__, str(error))
            except OSError as error:
                text = f"the cache {folder} cannot be used: {error}; give zooid.shards another one as `cache`"
                answer = _Answer(StoreError.__name__, text)
            note_fetches()
            if request.is_needed:
                with lock:
                    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
                    sys.stdout.buffer.flush()

    for _ in range(_NUM_AT_ONCE):
        threading.Thread(target=work, daemon=True).start()
    for number in itertools.count():
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)  # nobody needs pending fetches any more
        request = msgspec.json.decode(line, type=_Request)
        requests.put((not request.is_needed, number, request))


def _exit_with_traceback(hook: threading.ExceptHookArgs) -> None:
    """End the process, so that nobody waits for the answer of a dead thread."""
    traceback.print_exception(hook.exc_value)
    os._exit(1)


def _send(process: "subprocess.Popen[bytes]", request: _Request) -> bool:
    """Send a request; False if the process has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _end(sessions: dict[int, _Session]) -> None:
    session = sessions.get(os.getpid())
    if session is None or session.process is None:
        return
    process, session.process = session.process, None
    process.terminate()  # closing the pipe is not enough if a forked child has inherited it
    process.wait()
    _close_pipes(process)


def _close_pipes(process: "subprocess.Popen[bytes] | None") -> None:
    for pipe in (process.stdin, process.stdout) if process else ():
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # nobody is left to read the rest
