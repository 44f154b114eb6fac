"""Calls on GPU tensors, which are copied to pinned memory once the caller's stream has computed them, and back.

The caller's thread never waits for the GPU before `wait`. After `wait`, only the caller's stream waits for the copy
back.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zooid.comm.calls.work import Completion, TransferWork

Start = Callable[[list[torch.Tensor]], Completion]


class StagedWork(TransferWork):
    """A call on tensors of one GPU."""

    def __init__(self, done: Completion, result: Sequence[torch.Tensor], name: str, device: torch.device) -> None:
        super().__init__(done, result, name)
        self._device = device
        self.copied_back = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self.copied_back)

    def _new_future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future(devices=[self._device])

    def settle(self, future: torch.futures.Future[Any]) -> None:
        with torch.cuda.stream(_stream(self._device)):  # so the future's own event is recorded after the copy
            super().settle(future)


def stage(
    name: str,
    tensors: Sequence[torch.Tensor],
    start: Start,
    result: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
) -> StagedWork:
    """Begin a call on tensors of one GPU; tensors in CPU memory are used as they are.

    Only the tensors that the call writes are copied back. A copy into another one would make autograd believe that its
    values had changed, such as those of an activation that is sent while backward still needs it.
    """
    device = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
    side = _stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    copied_out = torch.cuda.Event()  # type: ignore[no-untyped-call]
    on_host: list[torch.Tensor] = []
    with torch.cuda.stream(side):
        for tensor in tensors:
            if tensor.device.type == "cpu":
                on_host.append(tensor)
                continue
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor.detach(), non_blocking=True)
            tensor.record_stream(side)
            on_host.append(host)
        copied_out.record(side)
    done = Completion()
    work = StagedWork(done, result, name, device)

    def begin() -> None:
        try:
            copied_out.synchronize()
            call = start(on_host)
        except Exception as error:  # noqa: BLE001  # the waiter must hear of it
            done.end(error)
            return
        call.then(lambda: _copiers.put(lambda: finish(call)))

    def finish(call: Completion) -> None:
        if call.error is None:
            with torch.cuda.stream(side):
                for tensor, host in zip(tensors, on_host, strict=True):
                    if tensor is not host and any(tensor is output for output in written):
                        tensor.detach().copy_(host, non_blocking=True)
                work.copied_back.record(side)
        done.end(call.error)

    _copiers.put(begin)
    return work


class _Copiers:
    """The one thread per process that waits for copies, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="zooid-gpu", daemon=True)
                self._thread.start()
        self._queue.put(action)

    def _work(self) -> None:
        while True:
            self._queue.get()()


_copiers = _Copiers()
_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device]
