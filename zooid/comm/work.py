"""Handles of calls under way, as torch.distributed returns them."""

import concurrent.futures
import datetime
from typing import Any

import torch
from torch.distributed import Work

from zooid.core.errors import CommTimeout


class TransferWork(Work):
    """Completes when the call's transfers have; failing transfers raise at `wait`, in the caller's thread."""

    def __init__(self, done: "concurrent.futures.Future[None]", result: list[torch.Tensor], name: str) -> None:
        super().__init__()
        self._done = done
        self._result = result
        self._name = name
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        # torch passes a zero time-out for "no limit of its own"; the transport's limit holds anyway.
        limit_s = timeout.total_seconds() if timeout else 0.0
        try:
            self._done.result(limit_s if limit_s > 0 else None)
        except concurrent.futures.TimeoutError as error:
            if self._done.done():
                raise
            raise CommTimeout(f"{self._name} was not finished within {limit_s:g} s") from error
        return True

    def is_completed(self) -> bool:
        return self._done.done()

    def is_success(self) -> bool:
        return self._done.done() and self._done.exception() is None

    def exception(self) -> BaseException | None:
        return self._done.exception() if self._done.done() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            future: torch.futures.Future[Any] = torch.futures.Future()
            self._future = future

            def settle(done: "concurrent.futures.Future[None]") -> None:
                error = done.exception()
                if error is None:
                    future.set_result(self._result)
                else:
                    future.set_exception(error)

            self._done.add_done_callback(settle)
        return self._future
