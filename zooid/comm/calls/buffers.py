"""The memory of a call: one flat tensor, or one tensor for each numbered part."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from zooid.comm.calls.tensors import Reduction, copy_into, flat_values, wire_view
from zooid.schedule.rank_program import SpanSum
from zooid.schedule.transfer_lists import Transfer

Finish = Callable[[], None]

_MAX_FREE_BYTES = 32 * 2**20


def nothing() -> None:
    """Do nothing at the end of a call."""


def flat_memory(tensor: torch.Tensor, write: bool = True) -> tuple[torch.Tensor, Finish]:
    """Return the tensor's values as a flat tensor, and a function that writes the results back to the tensor."""
    flat = flat_values(tensor)
    if not write or flat.data_ptr() == tensor.data_ptr():
        return flat, nothing
    return flat, lambda: copy_into(tensor, flat)


def incoming_parts(
    parts: Sequence[torch.Tensor], own_part: torch.Tensor, rank: int
) -> tuple[dict[int, torch.Tensor], Finish]:
    """Return memory for the parts of other ranks, and a function that writes them back.

    This rank's own part is copied at once. On a rank that receives nothing, `parts` is empty.
    """
    if parts:
        copy_into(parts[rank], own_part)
    flats = {source: flat_memory(part) for source, part in enumerate(parts) if source != rank}

    def write_back() -> None:
        for _, copy_back in flats.values():
            copy_back()

    return {source: flat for source, (flat, _) in flats.items()}, write_back


class Scratch:
    """Reused memory for parts of a sum: allocating fresh memory takes as long as the addition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[memoryview]] = defaultdict(list)
        self._free_bytes = 0

    def take(self, num_bytes: int) -> memoryview:
        with self._lock:
            free = self._free.get(num_bytes)
            if free:
                self._free_bytes -= num_bytes
                return free.pop()
        return wire_view(torch.empty(num_bytes, dtype=torch.uint8))

    def give_back(self, memory: memoryview) -> None:
        with self._lock:
            if self._free_bytes + memory.nbytes > _MAX_FREE_BYTES:
                self._free.clear()
                self._free_bytes = 0
            if memory.nbytes <= _MAX_FREE_BYTES:
                self._free[memory.nbytes].append(memory)
                self._free_bytes += memory.nbytes


class Buffers(Protocol):
    """The memory of one call. All but `outgoing` is called by one thread at a time."""

    finish: Finish
    """Writes the results to the caller's tensors."""

    def outgoing(self, transfer: Transfer) -> memoryview:
        """Return the bytes that this transfer sends."""

    def num_bytes(self, transfer: Transfer) -> int:
        """Return the size of the message."""

    def landing(self, transfer: Transfer) -> memoryview:
        """Return the memory that this transfer arrives in; it is kept until `arrived`."""

    def keeps(self, transfer: Transfer) -> bool:
        """Return whether the message may stay in the transport's own memory, which is read-only."""
        return False

    def arrived(self, transfer: Transfer, data: memoryview) -> None:
        """Take a `copy` that has arrived; most copies land where they belong."""
        return

    def add_up(self, span: SpanSum, parts: list[tuple[int, memoryview]]) -> None:
        """Sum a span whose parts have all arrived; each part comes with its rank."""
        raise AssertionError("this call only copies; it has no sums")


class FlatBuffer(Buffers):
    """A flat tensor, whose spans are sent and received as they are."""

    def __init__(self, flat: torch.Tensor, rank: int, reduction: Reduction, finish: Finish, scratch: Scratch) -> None:
        self._scratch = scratch
        self._rank = rank
        self._reduction = reduction
        self.finish = finish
        self._numbers = reduction.numbers(flat)
        self._bytes = wire_view(self._numbers)
        self._item = flat.element_size()

    def outgoing(self, transfer: Transfer) -> memoryview:
        return self._bytes[transfer.start * self._item : transfer.stop * self._item]

    def num_bytes(self, transfer: Transfer) -> int:
        return transfer.num_elements * self._item

    def landing(self, transfer: Transfer) -> memoryview:
        if transfer.combine == "copy":
            return self.outgoing(transfer)
        return self._scratch.take(self.num_bytes(transfer))

    def keeps(self, transfer: Transfer) -> bool:
        return transfer.combine == "reduce" and self._reduction.takes_any_memory

    def add_up(self, span: SpanSum, parts: list[tuple[int, memoryview]]) -> None:
        self._reduction.combine(self._numbers[span.start : span.stop], parts, self._rank)
        for memory in (memory for _, memory in parts if not memory.readonly):
            self._scratch.give_back(memory)


class PartBuffers(Buffers):
    """Numbered parts, each a flat tensor of its own: those to send, and those to receive."""

    def __init__(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], finish: Finish
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self.finish = finish

    def outgoing(self, transfer: Transfer) -> memoryview:
        return wire_view(self._outgoing[transfer.start])

    def num_bytes(self, transfer: Transfer) -> int:
        return self._incoming[transfer.start].nbytes

    def landing(self, transfer: Transfer) -> memoryview:
        return wire_view(self._incoming[transfer.start])
