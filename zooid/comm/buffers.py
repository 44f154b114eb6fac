"""Where the bytes of a call lie: one flat tensor, or a tensor for each numbered part."""

from collections.abc import Callable, Mapping

import torch

from zooid.comm.program import SpanSum
from zooid.comm.tensors import Reduction, wire_view
from zooid.schedule.collectives import Transfer

Finish = Callable[[], None]


class FlatBuffer:
    """A flat tensor, whose spans are sent and received as they are."""

    def __init__(self, flat: torch.Tensor, rank: int, reduction: Reduction | None, finish: Finish) -> None:
        self.flat = flat
        self._rank = rank
        self._reduction = reduction
        self._finish = finish
        self._bytes = wire_view(flat)
        self._item = flat.element_size()

    def outgoing(self, transfer: Transfer) -> memoryview:
        return self._bytes[transfer.start * self._item : transfer.stop * self._item]

    def num_bytes(self, transfer: Transfer) -> int:
        return transfer.num_elements * self._item

    def landing(self, transfer: Transfer) -> memoryview:
        if transfer.combine == "copy":
            return self.outgoing(transfer)
        return wire_view(torch.empty(transfer.num_elements, dtype=self.flat.dtype))

    def arrived(self, transfer: Transfer, data: memoryview) -> None:
        """It landed in place."""

    def add_up(self, span: SpanSum, parts: list[tuple[int, memoryview]]) -> None:
        assert self._reduction is not None, "a list that reduces comes with its operation"
        self._reduction.combine(self.flat[span.start : span.stop], parts, self._rank)

    def finish(self) -> None:
        self._finish()


class PartBuffers:
    """Numbered parts, each a flat tensor of its own: those that are sent, and those that arrive."""

    def __init__(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], finish: Finish
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._finish = finish

    def outgoing(self, transfer: Transfer) -> memoryview:
        return wire_view(self._outgoing[transfer.start])

    def num_bytes(self, transfer: Transfer) -> int:
        return self._incoming[transfer.start].nbytes

    def landing(self, transfer: Transfer) -> memoryview:
        return wire_view(self._incoming[transfer.start])

    def arrived(self, transfer: Transfer, data: memoryview) -> None:
        """It landed in place."""

    def add_up(self, span: SpanSum, parts: list[tuple[int, memoryview]]) -> None:
        raise AssertionError("parts are copied, never added up")

    def finish(self) -> None:
        self._finish()
