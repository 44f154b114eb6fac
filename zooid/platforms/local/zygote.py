"""`python -m zooid.platforms.local.zygote FD IDLE_S PADDING`: imports the modules of members, and forks members.

What it forks for a member first becomes the program that attends it, and forks once more.

A zygote opens no store, starts no thread and computes nothing, so that a forked member is as good as a new process. It
ends when the platform's process closes its socket or dies, while its members continue. It also ends after IDLE_S
seconds without a member.
"""

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import get_args

from zooid.core.runs.ticket import Program, Ticket
from zooid.entry.attendant import attend
from zooid.entry.forked_program import run_program
from zooid.entry.member_process import WaitingFork
from zooid.platforms.local.fork_messages import Birth, Lines, News, encode_line
from zooid.store.member_program import end_process

_CHUNK_BYTES = 1 << 16
_NEEDED = "torch"
"""No member is forked before this module is imported; every member would have to import it."""
_ARGUMENTS_BEGIN = 45
"""The field of /proc/PID/stat, counted after the name, with the address of the arguments; the next is their end."""


def main() -> int:
    """Run the zygote, or the member that this process becomes, and return its exit status."""
    gc.disable()  # collecting garbage would take a tenth of the time of imports, which leave little of it
    end = socket.socket(fileno=int(sys.argv[1]))
    _show_command(sys.argv[:1])  # without the padding
    try:
        birth = _Nursery(end, idle_s=float(sys.argv[2])).serve()
    except ConnectionError:  # the platform's process has died
        birth = None
    return 0 if birth is None else _become(birth)


class _Nursery:
    """Forks members on request, imports modules meanwhile, and reports how members ended."""

    def __init__(self, end: socket.socket, *, idle_s: float) -> None:
        self._end = end
        self._idle_s = idle_s
        self._is_ending = False
        """Whether the zygote accepts only requests that were already sent."""
        self._is_heard = True
        """Whether there may be requests to read."""
        self._lines = Lines(Birth)
        self._numbers: dict[int, int] = {}
        """Numbers of the running members, by process id."""
        self._preloads = [f"zooid.{program}.__main__" for program in get_args(Program)]
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> Birth | None:
        """Serve requests; returns the request in each forked member, and None when the zygote ends."""
        for wakeup in (self._woken, self._waker):
            wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler there is no wakeup
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while self._is_heard or self._numbers:
            can_fork = self._is_heard and (not self._preloads or _NEEDED in sys.modules)
            watched = [self._end, self._woken] if can_fork else [self._woken]
            ready, _, _ = select.select(watched, [], [], self._patience_s())
            if self._woken in ready:
                self._woken.recv(_CHUNK_BYTES)
                self._report_ends()
            if self._end in ready:
                data = self._end.recv(_CHUNK_BYTES)
                self._is_heard = bool(data)
                if not data and not self._is_ending:
                    return None
                for birth in self._lines.feed(data):
                    if self._fork(birth):
                        return birth
            elif self._preloads:
                self._import_next()
            elif not ready:
                self._is_ending = True
                self._end.shutdown(socket.SHUT_RD)  # earlier requests are still read, and later ones fail
        return None

    def _patience_s(self) -> float | None:
        """Seconds to wait for the next event; None without limit."""
        if self._preloads:
            return 0.0
        return None if self._numbers or self._is_ending else self._idle_s

    def _import_next(self) -> None:
        """Import one module; requests are served in between, and a forked member imports the rest itself."""
        name = self._preloads.pop(0)
        try:
            module = importlib.import_module(name)
        except Exception:  # noqa: BLE001  # a member that needs the module reports it better
            traceback.print_exc()
            return
        self._preloads += [preload for preload in getattr(module, "PRELOADS", ()) if preload not in self._preloads]
        gc.freeze()  # so that the collector of a member neither visits these objects nor copies their pages

    def _fork(self, birth: Birth) -> bool:
        """Fork a member; True in the new process."""
        ready, its_ready = os.pipe()
        pid = os.fork()
        if pid:
            os.close(its_ready)
            os.read(ready, 1)  # until it has its session, by which others can end it
            os.close(ready)
            self._numbers[pid] = birth.number
            self._end.sendall(encode_line(News(number=birth.number, pid=pid)))
            return False
        gc.enable()
        os.setsid()
        os.close(ready)
        os.close(its_ready)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for inherited in (self._end, self._woken, self._waker):
            inherited.close()
        return True

    def _report_ends(self) -> None:
        for pid, number in list(self._numbers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._numbers[pid]
                self._end.sendall(encode_line(News(number=number, status=os.waitstatus_to_exitcode(status))))


def _become(birth: Birth) -> int:
    """Attend the member of a request, which is a fork of this process."""
    log = os.open(birth.log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(birth.folder)
    os.environ.clear()
    os.environ.update(birth.environment)
    fork = WaitingFork(lambda folder: _become_member(birth.ticket, folder))  # while this process has no threads
    _show_command(["-m", "zooid.entry", birth.ticket.title])
    return attend(birth.ticket, fork)


def _become_member(ticket: Ticket, folder: str) -> int:
    """Run the program of a member in this process, so that it looks like `python -m zooid.PROGRAM SPEC DIGEST`."""
    _show_command(["-m", f"zooid.{ticket.program}", ticket.spec_url, ticket.spec_digest])
    del sys.path[0]  # the folder in which this program was started
    sys.modules["zooid.platforms.local.zygote"] = sys.modules["__main__"]
    return run_program(ticket, folder, {})


def _show_command(arguments: list[str]) -> None:
    """Let `ps` show these arguments; does nothing if the kernel hides the address of the arguments."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, fields[_ARGUMENTS_BEGIN : _ARGUMENTS_BEGIN + 2])
    if begin == 0:
        return
    words = b"\0".join(word.encode() for word in (sys.executable, *arguments))
    size = end - begin
    ctypes.memmove(begin, words[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    end_process(main())
