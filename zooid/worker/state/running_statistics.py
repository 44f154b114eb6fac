"""Buffers that a forward changes, such as the running statistics of batch norm, updated alike in every layout.

A step begins with buffers B. Every grain's forward runs on B, and its changes are added over the grains of all
replicas. When the step is applied, numbers become B plus the mean change of the step's grains, and counts become B plus
the sum of all changes. A step of one grain leaves its buffers as that grain does, bit for bit.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import increment_version

_COUNTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class RunningStatistics:
    """The buffers of one stage, except those of dtypes without addition, such as booleans."""

    def __init__(self, module: nn.Module, names: Container[str], count_type: torch.dtype) -> None:
        """`names` contains the buffers that training changes; all others are constants.

        `count_type` is the dtype in which counts travel to other replicas.
        """
        slots = [_slot_of(module, name) for name, _ in module.named_buffers() if name in names]
        types = [dtype for dtype in (*_NUMBERS, *_COUNTS) if any(slot.dtype == dtype for slot in slots)]
        self._by_type = [_OneType([slot for slot in slots if slot.dtype == dtype]) for dtype in types]
        self._travel_types = [dtype if dtype in _NUMBERS else count_type for dtype in types]
        self._num_grains = 1
        self._has_grain = False

    def like_changes(self) -> list[torch.Tensor]:
        """Tensors of the shapes and dtypes of `changes`."""
        return self._converted([buffers.decrease for buffers in self._by_type])

    @property
    def num_changes(self) -> int:
        """Number of tensors in `changes`."""
        return len(self._by_type)

    @property
    def is_single(self) -> bool:
        """Whether the step has a single grain, whose changes are complete when its backward is done."""
        return self._num_grains == 1

    def parts_of(self, changes: Sequence[torch.Tensor], names: Container[str]) -> list[torch.Tensor]:
        """The parts of these changes that belong to buffers with these names, as views; by dtype, then by name."""
        return [
            part
            for buffers, change in zip(self._by_type, changes, strict=True)
            for name, part in sorted(zip(buffers.names, buffers.split(change), strict=True), key=lambda pair: pair[0])
            if name in names
        ]

    def begin(self, num_grains: int) -> None:
        """Begin a step of so many grains, over all replicas."""
        self._num_grains = num_grains
        self._has_grain = False
        for buffers in self._by_type:
            buffers.begin(is_single=num_grains == 1)

    def begin_grain(self) -> None:
        """Restore the buffers of the step's start for the forward of a grain. A single grain finds them there."""
        if self._num_grains > 1:
            for buffers in self._by_type:
                buffers.restore()

    def end_grain(self) -> None:
        """Note what the forward has changed.

        The changes of a single grain are read again when its backward is done: a module that recomputes its activations
        may change buffers once more, as in a plain loop. With more grains, the order of backwards depends on the
        layout, so their changes do not count.
        """
        self._has_grain = True
        if self._num_grains > 1:
            for buffers in self._by_type:
                buffers.add_change()

    def changes(self) -> list[torch.Tensor]:
        """The changes of this replica's grains, to be summed over the replicas."""
        if self._num_grains == 1 and self._has_grain:
            for buffers in self._by_type:
                buffers.decrease.zero_()
                buffers.add_change()
        return self._converted([buffers.decrease for buffers in self._by_type])

    def take_changes(self) -> list[torch.Tensor]:
        """The changes since the last call, for the caller to sum."""
        taken = [change.clone() for change in self.changes()]
        for buffers in self._by_type:
            buffers.decrease.zero_()
        return taken

    def apply(self, reduced: Sequence[torch.Tensor] | None) -> None:
        """End the step, given the sums of all replicas' changes, or None if there is only one replica."""
        if reduced is None and self._num_grains == 1:
            for buffers in self._by_type:
                buffers.keep()
            return
        totals = [buffers.decrease for buffers in self._by_type] if reduced is None else reduced
        for buffers, total in zip(self._by_type, totals, strict=True):
            buffers.apply(total, self._num_grains)

    def drop(self) -> None:
        """Restore the buffers of the step's start."""
        for buffers in self._by_type:
            buffers.restore()

    def _converted(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [value.to(dtype) for value, dtype in zip(values, self._travel_types, strict=True)]


@dataclass(frozen=True)
class _BufferSlot:
    """A buffer of a module, whose code may assign another tensor, as in `self.mean = 0.9 * self.mean + …`."""

    full_name: str
    """The name in the stage."""
    buffers: dict[str, torch.Tensor | None]
    """All buffers of the module."""
    name: str
    """The name in the module."""
    tensor: torch.Tensor
    """The tensor that the stage, its evaluation and its checkpoints share."""
    values: torch.Tensor
    """The tensor's memory, which can be written without autograd's notice.

    Batch norm saves its statistics for a backward that never reads them. That backward must not fail because a later
    grain has restored them.
    """

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def take(self) -> torch.Tensor:
        """The values that a forward has left. A tensor that its code assigned is replaced by the shared one again."""
        current = self.buffers[self.name]
        if current is self.tensor or current is None:
            return self.values
        self.buffers[self.name] = self.tensor
        return _as_real(current.detach())


class _OneType:
    """The buffers of one dtype, with flat copies, so that most operations are one call for all of them."""

    def __init__(self, slots: Sequence[_BufferSlot]) -> None:
        self._slots = list(slots)
        self.names = [slot.full_name for slot in slots]
        self._values = [slot.values for slot in slots]
        self._versions = [slot.tensor._version for slot in slots]
        self._before = torch.cat([values.reshape(-1) for values in self._values])
        self._base = torch.zeros_like(self._before)
        self._after = torch.empty_like(self._before)
        self.decrease = torch.zeros_like(self._before)
        """The sum of what grains have subtracted from the buffers.

        Numbers that no grain changes keep their bits, since x - 0 is x for every x. A sum of what was added would turn
        -0.0 into 0.0.
        """
        self._views_before = _views(self._before, self._values)
        self._views_after = _views(self._after, self._values)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The part of each buffer in a flat tensor."""
        return _views(flat, self._values)

    def begin(self, *, is_single: bool) -> None:
        torch._foreach_copy_(self._views_before, self._values)
        if not self._before.is_floating_point():
            self._base.copy_(self._before)
        elif is_single:
            self._base.zero_()  # numbers travel as they are, and are not rounded
        else:
            # inf - x is no change to add: a minimum that begins at infinity becomes the mean of the grains' minima
            torch.nan_to_num(self._before, nan=0.0, posinf=0.0, neginf=0.0, out=self._base)
        self.decrease.zero_()

    def restore(self) -> None:
        for slot in self._slots:
            slot.take()
        torch._foreach_copy_(self._values, self._views_before)
        versions = [slot.tensor._version for slot in self._slots]
        if versions != self._versions:
            # a backward that reads what its own forward has written must fail, rather than read other values
            pairs = zip(self._slots, versions, self._versions, strict=True)
            increment_version([slot.tensor for slot, now, before in pairs if now != before])
            self._versions = [slot.tensor._version for slot in self._slots]

    def add_change(self) -> None:
        torch._foreach_copy_(self._views_after, [slot.take() for slot in self._slots])
        self.decrease += torch.sub(self._base, self._after, out=self._after)

    def keep(self) -> None:
        """Keep the buffers as the only grain of the step has left them."""
        for slot in self._slots:
            if (left := slot.take()) is not slot.values:
                slot.values.copy_(left)

    def apply(self, decrease: torch.Tensor, num_grains: int) -> None:
        self._after.copy_(decrease / num_grains if self._after.is_floating_point() else decrease.round())
        torch.sub(self._base, self._after, out=self._after)
        torch._foreach_copy_(self._values, self._views_after)


def _slot_of(module: nn.Module, name: str) -> _BufferSlot:
    path, _, buffer_name = name.rpartition(".")
    buffers = module.get_submodule(path)._buffers
    tensor = buffers[buffer_name]
    assert tensor is not None
    return _BufferSlot(name, buffers, buffer_name, tensor, _as_real(tensor.data))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    parts = torch.split(flat, [values.numel() for values in like])
    return [part.view(values.shape) for part, values in zip(parts, like, strict=True)]
