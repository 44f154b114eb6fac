"""What crosses a cut for one grain, as one message."""

from collections.abc import Sequence

import torch

from zooid.layers import Value


class Boundary:
    """Packs the tensors of one cut into one flat buffer of bytes, and back. Sizes follow from the number of samples."""

    def __init__(self, values: Sequence[Value], device: torch.device) -> None:
        self._values = tuple(values)
        self._device = device
        self._known_sizes: dict[int, _Sizes] = {}

    def num_bytes(self, num_samples: int) -> int:
        return self._sizes(num_samples).total_bytes

    def empty(self, num_samples: int) -> torch.Tensor:
        return torch.empty(self.num_bytes(num_samples), dtype=torch.uint8, device=self._device)

    def pack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A single tensor is its own message: nothing is copied. Where nothing crosses, as before a stage that is
        frozen, the message is empty."""
        for tensor, value in zip(tensors, self._values, strict=True):
            assert tensor.dtype == value.dtype, f"a value of {tensor.dtype} crosses where {value.dtype} was traced"
        parts = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        if not parts:
            return self.empty(0)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def unpack(self, message: torch.Tensor, num_samples: int) -> list[torch.Tensor]:
        sizes = self._sizes(num_samples)
        parts = torch.split(message, sizes.num_bytes) if len(self._values) != 1 else (message,)
        return [
            _aligned(part).view(value.dtype).view(shape)
            for part, value, shape in zip(parts, self._values, sizes.shapes, strict=True)
        ]

    def _sizes(self, num_samples: int) -> "_Sizes":
        known = self._known_sizes.get(num_samples)
        if known is None:
            known = self._known_sizes[num_samples] = _Sizes(
                [value.num_bytes(num_samples) for value in self._values],
                [value.shape(num_samples) for value in self._values],
            )
        return known


class _Sizes:
    """Of the values of one cut, for one number of samples."""

    def __init__(self, num_bytes: list[int], shapes: list[tuple[int, ...]]) -> None:
        self.num_bytes = num_bytes
        self.total_bytes = sum(num_bytes)
        self.shapes = shapes


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """Bytes at an offset that no wider type can be viewed at are copied."""
    return part.clone() if part.storage_offset() % 16 else part
