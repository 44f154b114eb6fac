"""One container as a provider runs it: an image is pulled, a program runs in a sandbox, and is stopped with grace."""

import signal
import threading
import time
from collections.abc import Sequence

from lab.sandboxes.confines import Confines
from lab.sandboxes.sandbox import Sandbox, SandboxHost

_SIGNALLED = 128
"""The exit code of a program that a signal has ended is this plus the signal's number."""


class RentedContainer:
    """A container that runs once. All times are Unix times on the clock of its service."""

    def __init__(
        self,
        host: SandboxHost,
        command: Sequence[str],
        confines: Confines,
        *,
        pull_s: float,
        limit_s: float | None = None,
    ) -> None:
        """Begin at once to pull the image, which takes `pull_s`; `limit_s` after that, the container is killed."""
        self.pulled_from_s = time.time()
        self.started_at_s: float | None = None
        self.ended_at_s: float | None = None
        """When the container ended; also set if it was stopped before it has begun."""
        self.code: int | None = None
        """The exit code, once it has ended."""
        self.ran_out_of_memory = False
        """Whether its first program was killed for its memory. Its children may be, and it lives on."""
        self.is_over_time = False
        self._host = host
        self._command = command
        self._confines = confines
        self._limit_s = limit_s
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()
        self._is_cancelled = threading.Event()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(pull_s,), daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    @property
    def sandbox(self) -> Sandbox | None:
        """What the program runs in; None before it has begun."""
        return self._sandbox

    def _run(self, pull_s: float) -> None:
        try:
            self._is_cancelled.wait(pull_s)
            with self._lock:
                if self._is_cancelled.is_set():
                    self.code = _SIGNALLED + signal.SIGKILL
                    return
                self._sandbox = self._host.start(self._command, self._confines)
                self.started_at_s = self._sandbox.started_at_s
            self._wait(self._sandbox)
        finally:
            self.ended_at_s = self.ended_at_s or time.time()
            self._has_ended.set()

    def _wait(self, sandbox: Sandbox) -> None:
        try:
            status = sandbox.wait(self._limit_s)
        except TimeoutError:
            self.is_over_time = True
            sandbox.kill()
            status = sandbox.wait()
        self.ran_out_of_memory = status == -signal.SIGKILL and not self.is_over_time and sandbox.ran_out_of_memory
        self.code = _SIGNALLED - status if status < 0 else status
        self.ended_at_s = sandbox.ended_at_s

    def notify(self) -> None:
        """Send the signal with which services announce that a container will be stopped."""
        if self._sandbox is not None:
            self._sandbox.signal(signal.SIGTERM)

    def stop(self, grace_s: float) -> None:
        """Announce the end, and kill the container after this time, without waiting for that."""
        self._is_cancelled.set()

        def end() -> None:
            self.notify()
            if not self._has_ended.wait(grace_s):
                self.kill()

        threading.Thread(target=end, daemon=True).start()

    def kill(self) -> None:
        """End the container at once."""
        self._is_cancelled.set()
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.kill()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False if it takes longer."""
        return self._has_ended.wait(timeout_s)
