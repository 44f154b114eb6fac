"""Commands and pieces of Python in processes that are forked from one with everything imported.

What they do is what a new interpreter would do, members included, which come from a zygote that is forked alike.
Only the seconds are saved that every interpreter needs for its imports.
"""

import atexit
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.integration.ranks import FORKING
from tests.processes import is_gone
from zooid.platforms.local import forks

_IDLE_S = "60"


def run_zooid(*arguments: str, cwd: Path, timeout_s: float = 200.0) -> "subprocess.CompletedProcess[str]":
    """Run `zooid ARGUMENTS` in a folder."""
    return _run(_command, arguments, cwd, timeout_s)


def run_zooid_in_terminal(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run `zooid ARGUMENTS` in a terminal of its own, which closes as soon as the command has ended."""
    own_end, its_end = pty.openpty()
    try:
        return _run(_command_at, (os.ttyname(its_end), *arguments), cwd, 200.0)
    finally:
        os.close(its_end)
        os.close(own_end)


def run_python(text: str, *, cwd: Path, timeout_s: float = 200.0) -> "subprocess.CompletedProcess[str]":
    """Run `python -W error -c TEXT` in a folder."""
    return _run(_piece, (text,), cwd, timeout_s)


def _run(
    work: Callable[..., None], arguments: Sequence[str], cwd: Path, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        process = FORKING.Process(target=_become, args=(work, arguments, cwd, dict(os.environ), output, errors))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
        texts = [path.read_text() if path.exists() else "" for path in (output, errors)]
        return subprocess.CompletedProcess(arguments, process.exitcode or 0, *texts)


def _become(
    work: Callable[..., None],
    arguments: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    output: Path,
    errors: Path,
) -> None:
    for number, path in ((1, output), (2, errors)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = str(folder)
    fork_zygote()
    sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        work(*arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  # as an interpreter ends
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _command(*arguments: str) -> None:
    from zooid.cli.main import main

    sys.argv = ["zooid", *arguments]
    main()


def _command_at(terminal: str, *arguments: str) -> None:
    os.setsid()
    os.dup2(os.open(terminal, os.O_RDWR), 0)  # the first terminal that a new session opens controls it
    _command(*arguments)


def _piece(text: str) -> None:
    sys.argv = ["-c"]
    warnings.simplefilter("error")
    exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))


class _ForkedZygote:
    """A zygote that waits for the socket over which it is asked, with as much of subprocess.Popen as is used."""

    def __init__(self) -> None:
        self._control, its_control = socket.socketpair()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._control.close()
            self._serve(its_control)
        its_control.close()

    def ask_at(self, end: socket.socket) -> None:
        socket.send_fds(self._control, [b"."], [end.fileno()])
        self._control.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        while self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # the command has detached itself from the process that made it
                if is_gone(self.pid):
                    self.returncode = 0
                time.sleep(0.01)
        return self.returncode

    @staticmethod
    def _serve(control: socket.socket) -> None:
        from zooid.platforms.local import zygote
        from zooid.store.member_program import end_process

        os.setsid()
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        control.close()
        if not descriptors:  # nobody needs members
            os._exit(0)
        sys.argv = ["zygote", str(descriptors[0]), _IDLE_S]
        end_process(zygote.main())


def fork_zygote() -> None:
    """Make a zygote now, while this process has no threads, for the first that is asked for."""
    waiting = [_ForkedZygote()]
    start = forks.start_zygote

    def start_forked(end: socket.socket, environment: Mapping[str, str], words: int) -> forks.ZygoteProcess:
        if not waiting:
            return start(end, environment, words)
        process = waiting.pop()
        process.ask_at(end)
        return process

    forks.start_zygote = start_forked
