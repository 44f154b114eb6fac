"""Moments in which Ctrl-C has to wait: while a member is being started, heard of or ended, it must not be lost."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that arrive inside are delivered on leaving; only the main thread gets any, so others just go on.

    Handlers rather than masks: a started process would inherit a mask, but not a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    is_inside = True

    def remember(number: int, frame: FrameType | None) -> None:
        if is_inside:
            pending.append(number)
        else:  # another signal arrived while handlers were being put back
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, remember)
    try:
        yield
    finally:
        is_inside = False
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            os.kill(os.getpid(), pending[0])
