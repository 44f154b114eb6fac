"""Reports calls to torch's profiler as torch's own backends do: one asynchronous event for each call."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from zooid.comm.calls.work import TransferWork

_quiet = threading.local()


@contextmanager
def quietly() -> Iterator[None]:
    """Report no events for calls that are part of a larger one."""
    _quiet.is_on = True
    try:
        yield
    finally:
        _quiet.is_on = False


def begin_event(name: str, tensors: Sequence[torch.Tensor]) -> Any:
    """Open an event with the shapes of the call's tensors; return None where no profiler runs."""
    if not torch._C._autograd._profiler_enabled() or getattr(_quiet, "is_on", False):
        return None
    return torch._C._autograd._record_function_with_args_enter(f"zooid:{name}", *tensors)


def end_event(event: Any, work: TransferWork) -> None:
    """Close the event when the call has ended; waiting for the call then waits for that, too.

    The profiler treats an event as asynchronous if another thread than the caller's ends it.
    """
    if event is None:
        return
    ended: torch.futures.Future[Any] = torch.futures.Future()
    work.end_with(torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(event, ended))

    def settle() -> None:
        work.done.wait()
        work.settle(ended)

    threading.Thread(target=settle, name="zooid-profiled", daemon=True).start()
