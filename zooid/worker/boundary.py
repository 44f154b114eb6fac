"""What crosses a cut for one grain, as one message."""

import math
from collections.abc import Sequence

import torch
from torch import fx


class Boundary:
    """Packs the tensors of one cut into one flat buffer of bytes, and back. Sizes follow from the number of samples."""

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self._shapes = [tuple(int(size) for size in node.meta["val"].shape[1:]) for node in nodes]
        self._dtypes = [node.meta["val"].dtype for node in nodes]

    def num_bytes(self, num_samples: int) -> int:
        return sum(self._sizes(num_samples))

    def empty(self, num_samples: int) -> torch.Tensor:
        return torch.empty(self.num_bytes(num_samples), dtype=torch.uint8)

    def pack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors])

    def unpack(self, message: torch.Tensor, num_samples: int) -> list[torch.Tensor]:
        parts = torch.split(message, self._sizes(num_samples))
        return [
            _aligned(part).view(dtype).view(num_samples, *shape)
            for part, dtype, shape in zip(parts, self._dtypes, self._shapes, strict=True)
        ]

    def _sizes(self, num_samples: int) -> list[int]:
        return [
            num_samples * math.prod(shape) * dtype.itemsize
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """Bytes at an offset that no wider type can be viewed at are copied."""
    return part.clone() if part.storage_offset() % 16 else part
