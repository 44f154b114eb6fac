"""Storages of tensors, counted until nothing refers to them."""

import weakref
from typing import Any

import torch


class LiveStorages:
    """The storages that were added and still exist, and the bytes counted for them."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._references: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        reference = self._references.get(storage._cdata)
        return reference is not None and reference() is not None

    def add(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        key = storage._cdata
        self.num_bytes += num_bytes

        def forget(_: Any) -> None:
            self.num_bytes -= num_bytes
            self._references.pop(key, None)

        self._references[key] = weakref.ref(storage, forget)
