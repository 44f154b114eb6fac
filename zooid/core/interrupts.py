"""Code that Ctrl-C must not interrupt: a member that is being started or ended must not get lost."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver signals that arrive inside only on leaving. Other threads than the main one get no signals.

    Uses handlers instead of masks, because a child process would inherit a mask.
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
