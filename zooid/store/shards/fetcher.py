"""A process of its own that fetches shards, for whichever process reads them.

The store's client does not survive a fork, and worker processes that read samples are forked from a member that has
used it. So each process that misses a shard starts a fetcher, a fresh interpreter without torch, and asks it: shard by
shard for what it needs now, and without waiting for what it will need. It ends when its pipe does, so never later than
the process that started it; and it takes neither the GIL nor the memory of the one that trains.
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
from zooid.store.objects import open_store
from zooid.store.shards.cache import ShardCache

_NUM_AT_ONCE = 4
"""Fetches at the same time. One stream does not fill a long link, and a window begins with several shards at once."""


class _Request(msgspec.Struct, frozen=True):
    shard: TarShard
    is_needed: bool
    """Somebody waits for an answer; the others only get one if they ask again when they need it."""


class _Answer(msgspec.Struct, frozen=True):
    error: str = ""
    """The name of a ZooidError, where it failed."""
    message: str = ""


@dataclass
class _Session:
    """What one process has of a fetcher; a forked child has none of its parent's."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    process: "subprocess.Popen[bytes] | None" = None


class Fetcher:
    """Asks a process of its own to fetch shards into the cache; started when first needed."""

    def __init__(self, url: str, cache: ShardCache) -> None:
        self._command = [sys.executable, "-m", "zooid.store.shards", url, str(cache.folder), str(cache.max_bytes or "")]
        self._sessions: dict[int, _Session] = {}
        self._finalizer = weakref.finalize(self, _end, self._sessions)

    def need(self, shard: TarShard) -> None:
        """Wait until a shard is in the cache; what went wrong is raised here."""
        session = self._session()
        with session.lock:
            process = self._running(session)
            assert process.stdout is not None
            line = process.stdout.readline() if _send(process, _Request(shard, True)) else b""
            if not line:
                raise StoreError(
                    f"the process that fetches shards ended with exit status {process.wait()} while it fetched "
                    f"{shard.key!r}; if it was killed, look whether the machine has run out of memory"
                )
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise getattr(errors, answer.error)(answer.message)

    def expect(self, shards: Iterable[TarShard]) -> None:
        """Fetch these in the background; where that fails, whoever needs one is told."""
        session = self._session()
        with session.lock:
            for shard in shards:
                _send(self._running(session), _Request(shard, False))

    def close(self) -> None:
        """End the process, if this one has started any; it is started again when needed."""
        _end(self._sessions)

    def _session(self) -> _Session:
        return self._sessions.setdefault(os.getpid(), _Session())

    def _running(self, session: _Session) -> "subprocess.Popen[bytes]":
        if session.process is None or session.process.poll() is not None:
            _close_pipes(session.process)
            session.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return session.process


def serve(url: str, folder: str, max_bytes: str) -> None:
    """The fetcher's own program: requests come line by line, the needed ones first; ends with its standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is interrupted ends us by closing the pipe
    threading.excepthook = _end_loudly
    store = open_store(url)
    cache = ShardCache(Path(folder), int(max_bytes) if max_bytes else None)
    requests: queue.PriorityQueue[tuple[bool, int, _Request]] = queue.PriorityQueue()
    lock = threading.Lock()

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
            if request.is_needed:
                with lock:
                    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
                    sys.stdout.buffer.flush()

    for _ in range(_NUM_AT_ONCE):
        threading.Thread(target=work, daemon=True).start()
    for number in itertools.count():
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)  # a fetch under way is of no use to anybody any more
        request = msgspec.json.decode(line, type=_Request)
        requests.put((not request.is_needed, number, request))


def _end_loudly(what: threading.ExceptHookArgs) -> None:
    """Whoever waits for an answer must not wait for a thread that is gone."""
    traceback.print_exception(what.exc_value)
    os._exit(1)


def _send(process: "subprocess.Popen[bytes]", request: _Request) -> bool:
    """Whether it could be sent."""
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
    process.terminate()  # closing its pipe would not do where a forked child has inherited that
    process.wait()
    _close_pipes(process)


def _close_pipes(process: "subprocess.Popen[bytes] | None") -> None:
    for pipe in (process.stdin, process.stdout) if process else ():
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was still to be sent has nobody to read it
