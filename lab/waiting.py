"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], *, timeout_s: float = 30.0) -> None:
    """Wait until something is so; it is an error if that takes longer."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.01)
