"""`python -m zooid.platforms.local.zygote FD IDLE_S PADDING`: imports what members need, and forks them.

A zygote opens no store, starts no thread and computes nothing, so that a forked member is as good as a new process. It
ends when the platform's process closes its socket or dies, and its members then go on; or when it has had no member for
IDLE_S seconds.
"""

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import get_args

from zooid.platforms.local.fork_messages import Birth, Lines, News, encode_line
from zooid.platforms.platform import Program
from zooid.store.member_program import end_process

_CHUNK_BYTES = 1 << 16
_NEEDED = "torch"
"""Nothing is forked before this module is there: every member would import it for itself."""
_ARGUMENTS_BEGIN = 45
"""Field of /proc/PID/stat, counted behind the name, with the address of the arguments; the next one is their end."""


def main() -> int:
    """The status of the zygote, or of the member that this process has become."""
    gc.disable()  # imports leave no garbage worth the tenth of their time that looking for it takes
    end = socket.socket(fileno=int(sys.argv[1]))
    _show_command(sys.argv[:1])  # without the padding
    try:
        birth = _Nursery(end, idle_s=float(sys.argv[2])).serve()
    except ConnectionError:  # the platform's process has died
        birth = None
    return 0 if birth is None else _become(birth)


class _Nursery:
    """Forks members when asked, imports modules when not, and tells how members ended."""

    def __init__(self, end: socket.socket, *, idle_s: float) -> None:
        self._end = end
        self._idle_s = idle_s
        self._is_ending = False
        """It takes no more requests but those that were sent before."""
        self._is_heard = True
        """There may be requests to read."""
        self._lines = Lines(Birth)
        self._numbers: dict[int, int] = {}
        """Members that run, by process id."""
        self._preloads = [f"zooid.{program}.__main__" for program in get_args(Program)]
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> Birth | None:
        """Returns once in every forked process, with what it is to become; and None when nobody asks any more."""
        for each in (self._woken, self._waker):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # a handler, so that the wakeup happens at all
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while self._is_heard or self._numbers:
            can_fork = self._is_heard and (not self._preloads or _NEEDED in sys.modules)
            watched = [self._end, self._woken] if can_fork else [self._woken]
            ready, _, _ = select.select(watched, [], [], self._patience_s())
            if self._woken in ready:
                self._woken.recv(_CHUNK_BYTES)
                self._tell_ends()
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
                self._end.shutdown(socket.SHUT_RD)  # what was asked before is still read; who asks later is told so
        return None

    def _patience_s(self) -> float | None:
        """How long to wait for something to happen."""
        if self._preloads:
            return 0.0
        return None if self._numbers or self._is_ending else self._idle_s

    def _import_next(self) -> None:
        """Between two imports, requests are looked at: what a forked member still lacks, it imports itself."""
        name = self._preloads.pop(0)
        try:
            module = importlib.import_module(name)
        except Exception:  # noqa: BLE001  # a member that needs it says so better
            traceback.print_exc()
            return
        self._preloads += [each for each in getattr(module, "PRELOADS", ()) if each not in self._preloads]
        gc.freeze()  # members need not look through it again and again, nor copy its pages for that

    def _fork(self, birth: Birth) -> bool:
        """Whether this process is the new one."""
        ready, its_ready = os.pipe()
        pid = os.fork()
        if pid:
            os.close(its_ready)
            os.read(ready, 1)  # until it has a session, by which others can end it
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
        for each in (self._end, self._woken, self._waker):
            each.close()
        return True

    def _tell_ends(self) -> None:
        for pid, number in list(self._numbers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._numbers[pid]
                self._end.sendall(encode_line(News(number=number, status=os.waitstatus_to_exitcode(status))))


def _become(birth: Birth) -> int:
    """Run the member's program in this process, which looks like `python -m zooid.PROGRAM SPEC` from everywhere."""
    log = os.open(birth.log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(birth.folder)
    sys.path[0] = birth.folder
    os.environ.clear()
    os.environ.update(birth.environment)
    tempfile.tempdir = None  # it was chosen by the zygote's environment
    _draw_anew()
    name = f"zooid.{birth.program}"
    _show_command(["-m", name, birth.spec_url])
    module = importlib.import_module(f"{name}.__main__")
    sys.modules["zooid.platforms.local.zygote"], sys.modules["__main__"] = sys.modules["__main__"], module
    sys.argv = [str(module.__file__), birth.spec_url]
    status: int = module.main()
    return status


def _draw_anew() -> None:
    """Siblings must not draw the same numbers. Python's own generator sees to that by itself."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def _show_command(arguments: list[str]) -> None:
    """Let `ps` show these arguments behind the interpreter's name; where the kernel does not tell where, nothing is
    changed."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, fields[_ARGUMENTS_BEGIN : _ARGUMENTS_BEGIN + 2])
    if begin == 0:
        return
    words = b"\0".join(word.encode() for word in (sys.executable, *arguments))
    size = end - begin
    ctypes.memmove(begin, words[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    end_process(main())
