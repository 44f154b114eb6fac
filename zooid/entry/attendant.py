"""The life of one member, from the claim on its start to the record of its end."""

import logging
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from zooid.core.errors import ObjectNotFound, StoreError, ZooidError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import StoreUsed
from zooid.core.runs.member_records import Exit, MemberEnd
from zooid.core.runs.ticket import Ticket, check_spec
from zooid.entry import machine_folder
from zooid.entry.cgroups import Confinement, SharedLimit, confine
from zooid.entry.member_process import MemberProcess, Starter
from zooid.entry.orphans import adopt_orphans, end_orphans, reap_orphans
from zooid.entry.output_tail import OutputTail, TailCopies
from zooid.entry.unpacked_code import unpacked
from zooid.store import ObjectStore, RetryingStore, open_store
from zooid.store.dismissals import DismissalWatch
from zooid.store.member_starts import claim_start, find_start
from zooid.store.request_counts import counts_of

logger = logging.getLogger(__name__)

EXIT_NOT_STARTED = 3
"""The exit status of a program that could not start its member."""
ALREADY_STARTED = "was started by another program, and is not started again"
"""What is said, after the name of the member, by a program whose start was repeated."""
GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL for a member that is to end."""
_NOTICE_S = 1.0
"""Seconds between two notices to the same member, which may not have expected the first one yet."""
_DRAIN_S = 0.5
"""Seconds to wait for the last output, which a process that the member has left behind might hold open."""
_HASTY_PATIENCE_S = 10.0
_CHUNK_BYTES = 1 << 16
_KILOBYTE = 1024
_START_FIELD = 19
"""The field of /proc/PID/stat, counted after the name, with the start of the process in ticks since the boot."""


def attend(ticket: Ticket, starter: Starter) -> int:
    """Run a member to its end, and return the exit status of this program.

    A second start of the same member does nothing.
    """
    occupied = machine_folder.occupy(ticket.run, ticket.title)
    if occupied is None:
        starter.cancel()
        return 0
    store_url, spec_key = keys.split_spec_url(ticket.spec_url)
    try:
        store = RetryingStore(open_store(store_url))
        # the spec comes first, so that nothing is written into a folder that was removed
        code = _code_digest(store, spec_key, ticket)
        is_ours = claim_start(store, ticket.member, ticket.roster)
    except ZooidError as error:
        starter.cancel()
        logger.error("%s", error)
        return EXIT_NOT_STARTED
    if not is_ours:
        starter.cancel()
        _tell_why_not(store, ticket)
        return 0
    try:
        folder = unpacked(store.get, code, Path(machine_folder.run_folder(ticket.run), "code")) if code else Path.cwd()
        ended = _Attendant(ticket, store, starter, occupied).run(folder)
    except ZooidError as error:
        starter.cancel()
        ended = Exit(None, ran_s=_age_s(), reason=f"could not be started: {error}")
    store.shorten(_HASTY_PATIENCE_S)
    ended = structs.replace(ended, used=_used(store, ticket.member))
    try:
        store.put(keys.end(ticket.member, ticket.roster), encode_record(MemberEnd(member=ticket.member, exit=ended)))
    except StoreError as error:
        logger.error("how %s ended could not be recorded: %s", ticket.member, error)
        return EXIT_NOT_STARTED
    machine_folder.leave(ticket.run)
    return 0


def _tell_why_not(store: ObjectStore, ticket: Ticket) -> None:
    """Say whether a member is not started because another program runs it, or because nobody wants it any more."""
    with suppress(ZooidError):
        start = find_start(store, ticket.member, ticket.roster)
        if start is not None and not start.is_cancelled:
            logger.info("%s %s", ticket.title, ALREADY_STARTED)


def _used(store: ObjectStore, member: str) -> StoreUsed:
    """Return what this program has used of the store, with the put that records it."""
    counts = counts_of(store)
    return StoreUsed(
        at_s=time.time(),
        member=member,
        num_puts=counts.num_puts + 1,
        num_gets=counts.num_gets,
        num_lists=counts.num_lists,
        sent_bytes=counts.sent_bytes,
        received_bytes=counts.received_bytes,
    )


class _CodeField(msgspec.Struct):
    """The part of a spec that the attendant reads."""

    code: str = ""


def _code_digest(store: ObjectStore, key: str, ticket: Ticket) -> str:
    """Check that the spec is the one that was launched, and return the digest of its code; empty if it has none."""
    try:
        data = store.get(key)
    except ObjectNotFound as error:
        raise ZooidError(f"{ticket.spec_url} does not exist; was the run's folder removed?") from error
    check_spec(data, ticket.spec_url, ticket.spec_digest)
    return msgspec.json.decode(data, type=_CodeField).code


class _Attendant:
    """Starts a member, and waits for its end."""

    def __init__(self, ticket: Ticket, store: ObjectStore, starter: Starter, place: machine_folder.Occupation) -> None:
        self._ticket = ticket
        self._store = store
        self._starter = starter
        self._place = place
        self._tail = OutputTail()
        self._has_notice = False
        self._notice_at_s = 0.0
        self._kill_at_s: float | None = None
        """When the member is killed, by the monotonic clock, if it is to end."""
        self._reason = ""

    def run(self, folder: Path) -> Exit:
        """Start the member in this working directory, wait for its end, and return how it ended."""
        ticket = self._ticket
        confinement = None if ticket.size is None else confine(ticket.size)
        limit = SharedLimit(ticket.given_bytes) if confinement is None else confinement
        try:
            adopt_orphans()
            with _Signals() as signals, self._watched_for_dismissal():
                enter = () if confinement is None else confinement.prefix
                process = self._starter.start(ticket, str(folder), enter)
                self._place.note_session(process.pid)
                copies = TailCopies(self._tail, self._store, keys.log(ticket.member, ticket.roster))
                status = self._wait(process, signals)
                copies.end()
            return self._exit(status, confinement, limit)
        finally:
            if confinement is not None:
                confinement.remove()

    @contextmanager
    def _watched_for_dismissal(self) -> Iterator[None]:
        """Take a request in the store to end the member like the signal that others get."""
        if not self._ticket.ends_by_request:
            yield
            return
        interrupt = partial(os.kill, os.getpid(), signal.SIGINT)
        watch = DismissalWatch(self._store, self._ticket.member, self._ticket.roster, interrupt)
        try:
            yield
        finally:
            watch.close()

    def _wait(self, process: MemberProcess, signals: "_Signals") -> int:
        """Wait until the member has ended, end all that it has left behind, and return its exit status."""
        ends_s = None if self._ticket.lifetime_s is None else time.monotonic() + self._ticket.lifetime_s - _age_s()
        watched = [process.output, signals.descriptor]
        while True:
            moments_s = [ends_s, self._kill_at_s, self._notice_at_s if self._has_notice else None]
            next_s = min((moment_s for moment_s in moments_s if moment_s is not None), default=None)
            timeout_s = None if next_s is None else max(0.0, next_s - time.monotonic())
            ready, _, _ = select.select(watched, [], [], timeout_s)
            if process.output in ready and not self._read(process):
                watched.remove(process.output)
            for number in signals.read():
                self._take(number, process)
            now_s = time.monotonic()
            if self._has_notice and now_s >= self._notice_at_s:
                _signal(process.pid, signal.SIGUSR1, os.kill)
                self._notice_at_s = now_s + _NOTICE_S
            if ends_s is not None and now_s >= ends_s:
                ends_s = None
                self._reason = f"was ended, because its {self._ticket.lifetime_s:g} s were over"
                _signal(process.pid, signal.SIGKILL, os.killpg)
            if self._kill_at_s is not None and now_s >= self._kill_at_s:
                self._kill_at_s = None
                _signal(process.pid, signal.SIGKILL, os.killpg)
            ended, status = os.waitpid(process.pid, os.WNOHANG)
            if ended:
                break
        _signal(process.pid, signal.SIGKILL, os.killpg)  # its children may have outlived it
        end_orphans()
        deadline_s = time.monotonic() + _DRAIN_S
        while process.output in watched and (left_s := deadline_s - time.monotonic()) > 0:
            if not select.select([process.output], [], [], left_s)[0] or not self._read(process):
                break
        return os.waitstatus_to_exitcode(status)

    def _read(self, process: MemberProcess) -> bool:
        """Read some output; False at its end."""
        data = os.read(process.output, _CHUNK_BYTES)
        self._tail.add(data)
        return bool(data)

    def _take(self, number: int, process: MemberProcess) -> None:
        """Pass a notice on (SIGTERM), end the member (SIGINT), or reap what it has left behind (SIGCHLD)."""
        if number == signal.SIGCHLD:
            reap_orphans(process.pid)
        elif number == signal.SIGTERM:
            self._has_notice = True
        elif number == signal.SIGINT and self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + GRACE_S
            _signal(process.pid, signal.SIGTERM, os.killpg)

    def _exit(self, status: int, confinement: Confinement | None, limit: Confinement | SharedLimit) -> Exit:
        peak_bytes = None if confinement is None else confinement.peak_bytes()
        exceeded_bytes = limit.exceeded_bytes() if status == -signal.SIGKILL else None
        if peak_bytes is None:
            peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _KILOBYTE
        return Exit(status, exceeded_bytes, peak_bytes, ran_s=_age_s(), reason=self._reason)


class _Signals:
    """Signals of this process as bytes that can be read, so that they can be awaited together with output."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

    def __enter__(self) -> "_Signals":
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self.descriptor = self._woken.fileno()
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, lambda number, frame: None) for number in self._NUMBERS}
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in self._NUMBERS:
            signal.signal(number, signal.SIG_IGN if number != signal.SIGCHLD else signal.SIG_DFL)
        self._woken.close()
        self._waker.close()

    def read(self) -> bytes:
        """Return the numbers of the signals that have arrived since the last call."""
        with suppress(BlockingIOError):
            return self._woken.recv(_CHUNK_BYTES)
        return b""


def _signal(pid: int, number: int, send: Callable[[int, int], None]) -> None:
    with suppress(ProcessLookupError):
        send(pid, number)


def _age_s() -> float:
    """Return the seconds since this process began, as the kernel counts them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
