"""Packs tensors into the bytes of a safetensors file, with a single copy.

Training waits for this copy, so it must be short. The library's own `save` copies twice, once while it holds the GIL,
and takes a dozen times as long. Files are read back with the library.
"""

import json
from collections.abc import Mapping

import torch

Tensors = dict[str, torch.Tensor]

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_ALIGNMENT = 8


def is_storable(tensor: torch.Tensor) -> bool:
    """Whether the format supports this tensor's dtype. It has no sparse tensors."""
    return tensor.dtype in _NAMES and tensor.layout == torch.strided


def pack(tensors: Mapping[str, torch.Tensor]) -> memoryview:
    """The bytes of a file with these tensors, in host memory."""
    # the widest dtypes first, so that every tensor begins at a multiple of its width without gaps
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers 4 rejects a file without it
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    start = _ALIGNMENT + len(text)
    packed = torch.empty(start + end, dtype=torch.uint8)
    packed[:_ALIGNMENT] = torch.frombuffer(bytearray(len(text).to_bytes(_ALIGNMENT, "little")), dtype=torch.uint8)
    packed[_ALIGNMENT:start] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    offset = start
    for _, tensor in ordered:
        num_bytes = tensor.numel() * tensor.element_size()
        packed[offset : offset + num_bytes].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        offset += num_bytes
    return packed.numpy().data
