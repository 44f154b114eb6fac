"""Turns the lines that a job prints into events, so that the user sees them wherever the member runs."""

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from zooid.core.runs.events import Event, MemberPrinted


@contextmanager
def shown_prints(member: str, emit: Callable[[Event], None]) -> Iterator[None]:
    """Turn whole lines that are printed inside into events. They still go to the member's own log."""
    stream = _Prints(member, emit, sys.stdout)
    with redirect_stdout(stream):
        try:
            yield
        finally:
            stream.end()


class _Prints(io.TextIOBase):
    """A text stream that writes every line as an event."""

    def __init__(self, member: str, emit: Callable[[Event], None], log: TextIO) -> None:
        self._member = member
        self._emit = emit
        self._log = log
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._unfinished = ""
        self._has_ended = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._log.fileno()

    def write(self, text: str) -> int:
        self._log.write(text)
        if os.getpid() != self._process:  # a forked reader of samples, which lacks the thread that writes events
            return len(text)
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            for line in lines:
                self._tell(line)
        return len(text)

    def flush(self) -> None:
        self._log.flush()

    def end(self) -> None:
        """Write the unfinished last line as an event. From now on, the stream writes to the log only."""
        with self._lock:
            if self._unfinished:
                self._tell(self._unfinished)
            self._unfinished = ""
            self._has_ended = True

    def _tell(self, line: str) -> None:
        if not self._has_ended:
            self._emit(MemberPrinted(at_s=time.time(), member=self._member, text=line))
