"""What a job prints in a member, as events: whoever started the run sees it, wherever the member is."""

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
    """Whole lines that are printed inside become events; they still go to the member's own log."""
    stream = _Prints(member, emit, sys.stdout)
    with redirect_stdout(stream):
        try:
            yield
        finally:
            stream.end()


class _Prints(io.TextIOBase):
    """A text stream that passes its lines on."""

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
        if os.getpid() != self._process:  # a forked reader of samples: the thread that writes events is not there
            return len(text)
        with self._lock:
            *lines, self._unfinished = (self._unfinished + text).split("\n")
            for line in lines:
                self._tell(line)
        return len(text)

    def flush(self) -> None:
        self._log.flush()

    def end(self) -> None:
        """Tell of a last line without an end; whoever still holds the stream writes to the log alone."""
        with self._lock:
            if self._unfinished:
                self._tell(self._unfinished)
            self._unfinished = ""
            self._has_ended = True

    def _tell(self, line: str) -> None:
        if not self._has_ended:
            self._emit(MemberPrinted(at_s=time.time(), member=self._member, text=line))
