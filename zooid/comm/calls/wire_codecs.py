"""Codecs that shrink floats on the wire: half precision, or eight bits with a scale for each block.

The rounding error of eight bits is kept and added to the tensor's next all-reduce (error feedback), so no part of a
gradient is dropped for good. Every rank, the sender included, goes on with the decoded values: all hold the same bits.
"""

import threading
from typing import Any

import torch
from torch.distributed import ReduceOp
from torch.multiprocessing.reductions import StorageWeakRef

from zooid.comm.calls.buffers import Buffers, Finish
from zooid.comm.calls.tensors import Reduction, wire_view
from zooid.core.errors import CommError
from zooid.core.plans.codec_sizes import INT8_BLOCK, CodecName, wire_bytes
from zooid.schedule.rank_program import SpanSum
from zooid.schedule.transfer_lists import Transfer

_CODED_TYPES = (torch.float32, torch.float64)
_MIN_ELEMENTS = 1024
"""Small tensors such as counts, losses and norms are not encoded: they need their digits, and gain no time."""
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_MAX_INT8 = 127


def is_coded(codec: CodecName, values: torch.Tensor, operation: Any) -> bool:
    """Return whether an all-reduce uses the codec, as sums and means of many floats do."""
    is_sum = operation == ReduceOp.SUM or operation == ReduceOp.AVG
    return codec != "none" and is_sum and values.dtype in _CODED_TYPES and values.numel() >= _MIN_ELEMENTS


def encode(codec: CodecName, values: torch.Tensor) -> torch.Tensor:
    """Encode a flat tensor of floats as bytes, whose number `wire_bytes` gives."""
    if codec in _HALVES:
        return values.to(_HALVES[codec]).view(torch.uint8)
    blocks = _in_blocks(values.to(torch.float32))
    scales = blocks.abs().amax(1) / _MAX_INT8
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (blocks / steps[:, None]).round_().to(torch.int8).reshape(-1)[: values.numel()]
    return torch.cat([scales.view(torch.uint8), numbers.view(torch.uint8)])


def decode(codec: CodecName, data: torch.Tensor, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Decode bytes into floats."""
    if data.numel() != wire_bytes(codec, num_elements):
        raise CommError(f"{data.numel()} bytes arrived for {num_elements} elements in {codec}")
    if codec == "none":
        raise CommError("the codec none encodes nothing, so there is nothing to decode; use fp16, bf16 or int8")
    if codec in _HALVES:
        return data.view(_HALVES[codec]).to(dtype)
    num_scales = -(-num_elements // INT8_BLOCK)
    scales = data[: num_scales * 4].view(torch.float32)
    numbers = _in_blocks(data[num_scales * 4 :].view(torch.int8).to(torch.float32))
    return (numbers * scales[:, None]).reshape(-1)[:num_elements].to(dtype)


class Residuals:
    """The rounding errors of each tensor, kept for as long as the tensor's memory lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int, int], tuple[StorageWeakRef, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor, flat: torch.Tensor, codec: CodecName) -> torch.Tensor | None:
        """Return the tensor's rounding errors, one for each value of `flat`; None for codecs without feedback."""
        if codec != "int8":
            return None
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key = (int(reference.cdata), int(tensor.storage_offset()), flat.numel())
        with self._lock:
            for old, (kept, _) in list(self._kept.items()):
                if kept.expired():  # type: ignore[no-untyped-call]
                    del self._kept[old]
            if key not in self._kept:
                self._kept[key] = (reference, torch.zeros_like(flat))
            return self._kept[key][1]


class CodedBuffer(Buffers):
    """A flat tensor of floats whose spans travel encoded."""

    def __init__(
        self,
        flat: torch.Tensor,
        rank: int,
        reduction: Reduction,
        finish: Finish,
        codec: CodecName,
        residual: torch.Tensor | None,
    ) -> None:
        self._flat = flat
        self._numbers = reduction.numbers(flat)
        self._rank = rank
        self._reduction = reduction
        self.finish = finish
        self._codec = codec
        self._residual = residual

    def outgoing(self, transfer: Transfer) -> memoryview:
        span = slice(transfer.start, transfer.stop)
        values = self._flat[span]
        if self._residual is not None:
            values = values + self._residual[span]
        encoded = encode(self._codec, values)
        decoded = decode(self._codec, encoded, transfer.num_elements, values.dtype)
        if self._residual is not None:
            torch.sub(values, decoded, out=self._residual[span]).nan_to_num_(0.0, 0.0, 0.0)  # else it would stay NaN
        self._flat[span] = decoded
        return wire_view(encoded)

    def num_bytes(self, transfer: Transfer) -> int:
        return wire_bytes(self._codec, transfer.num_elements)

    def landing(self, transfer: Transfer) -> memoryview:
        return wire_view(torch.empty(self.num_bytes(transfer), dtype=torch.uint8))

    def arrived(self, transfer: Transfer, data: memoryview) -> None:
        self._flat[transfer.start : transfer.stop] = self._decoded(data, transfer.num_elements)

    def add_up(self, span: SpanSum, parts: list[tuple[int, memoryview]]) -> None:
        decoded = [(source, wire_view(self._decoded(data, span.stop - span.start))) for source, data in parts]
        self._reduction.combine(self._numbers[span.start : span.stop], decoded, self._rank)

    def _decoded(self, data: memoryview, num_elements: int) -> torch.Tensor:
        if num_elements == 0:
            return torch.empty(0, dtype=self._flat.dtype)
        return decode(self._codec, torch.frombuffer(data, dtype=torch.uint8), num_elements, self._flat.dtype)


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    missing = -values.numel() % INT8_BLOCK
    padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
    return padded.view(-1, INT8_BLOCK)
