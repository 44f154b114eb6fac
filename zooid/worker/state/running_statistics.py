"""Buffers that a forward changes, such as the running statistics of batch norm, whoever computes which grain.

A step begins with buffers B. Every grain's forward runs on B, and what it changes is added up over the grains of all
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
    """The buffers of one stage, but for types that nothing can be added to, such as booleans."""

    def __init__(self, module: nn.Module, names: Container[str], count_type: torch.dtype) -> None:
        """`names` are those of the module's buffers that count; all others are constants.

        `count_type` is the type of number in which counts travel to other replicas.
        """
        places = [_place_of(module, name) for name, _ in module.named_buffers() if name in names]
        types = [dtype for dtype in (*_NUMBERS, *_COUNTS) if any(place.dtype == dtype for place in places)]
        self._by_type = [_OneType([place for place in places if place.dtype == dtype]) for dtype in types]
        self._travel_types = [dtype if dtype in _NUMBERS else count_type for dtype in types]
        self._num_grains = 1
        self._has_grain = False

    def like_changes(self) -> list[torch.Tensor]:
        """Tensors of the sizes and types that `changes` has."""
        return self._converted([own.decrease for own in self._by_type])

    @property
    def num_changes(self) -> int:
        """Number of tensors that `changes` has."""
        return len(self._by_type)

    @property
    def is_single(self) -> bool:
        """True if the step has a single grain, whose changes are complete when its backward is done."""
        return self._num_grains == 1

    def begin(self, num_grains: int) -> None:
        """Begin a step of so many grains, those of all replicas together."""
        self._num_grains = num_grains
        self._has_grain = False
        for own in self._by_type:
            own.begin(is_single=num_grains == 1)

    def begin_grain(self) -> None:
        """Let the forward of a grain begin with the buffers of the step's start; a single grain finds them there."""
        if self._num_grains > 1:
            for own in self._by_type:
                own.restore()

    def end_grain(self) -> None:
        """Note what the forward has changed.

        What a single grain has changed is read when its backward is done, too: a module that computes its activations
        again may change buffers once more, as it does in a plain loop. With more grains, the order of backwards depends
        on the layout, and what they change does not count.
        """
        self._has_grain = True
        if self._num_grains > 1:
            for own in self._by_type:
                own.add_change()

    def changes(self) -> list[torch.Tensor]:
        """What this replica's grains have changed, to be summed over the replicas."""
        if self._num_grains == 1 and self._has_grain:
            for own in self._by_type:
                own.decrease.zero_()
                own.add_change()
        return self._converted([own.decrease for own in self._by_type])

    def take_changes(self) -> list[torch.Tensor]:
        """What grains have changed since this was called last, for somebody else to add up."""
        taken = [change.clone() for change in self.changes()]
        for own in self._by_type:
            own.decrease.zero_()
        return taken

    def apply(self, reduced: Sequence[torch.Tensor] | None) -> None:
        """End the step, given the sums of all replicas' changes; None where there is one replica."""
        if reduced is None and self._num_grains == 1:
            for own in self._by_type:
                own.keep()
            return
        totals = [own.decrease for own in self._by_type] if reduced is None else reduced
        for own, total in zip(self._by_type, totals, strict=True):
            own.apply(total, self._num_grains)

    def drop(self) -> None:
        """Bring back the buffers of the step's start."""
        for own in self._by_type:
            own.restore()

    def _converted(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [value.to(dtype) for value, dtype in zip(values, self._travel_types, strict=True)]


@dataclass(frozen=True)
class _Place:
    """Where a module keeps a buffer. Its code may put another tensor there, as in `self.mean = 0.9 * self.mean + …`."""

    buffers: dict[str, torch.Tensor | None]
    """All buffers of the module."""
    name: str
    tensor: torch.Tensor
    """The one that the stage, its evaluation and its checkpoints know."""
    values: torch.Tensor
    """The same memory under another name. Autograd does not notice what is written through it: batch norm saves its
    statistics for a backward that never reads them, and must not fail because a later grain has restored them."""

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def take(self) -> torch.Tensor:
        """The values that a forward has left; another tensor in this place makes room for the one that belongs here."""
        current = self.buffers[self.name]
        if current is self.tensor or current is None:
            return self.values
        self.buffers[self.name] = self.tensor
        return _as_real(current.detach())


class _OneType:
    """Buffers of one type of number, with flat copies of them, so that most operations are one for all."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = list(places)
        self._values = [place.values for place in places]
        self._versions = [place.tensor._version for place in places]
        self._before = torch.cat([values.reshape(-1) for values in self._values])
        self._base = torch.zeros_like(self._before)
        self._after = torch.empty_like(self._before)
        self.decrease = torch.zeros_like(self._before)
        """The sum of what grains have taken away from the numbers. Numbers that no grain changes keep their bits, since
        x - 0 is x for every x. A sum of what was added would turn -0.0 into 0.0."""
        self._views_before = _views(self._before, self._values)
        self._views_after = _views(self._after, self._values)

    def begin(self, *, is_single: bool) -> None:
        torch._foreach_copy_(self._views_before, self._values)
        if not self._before.is_floating_point():
            self._base.copy_(self._before)
        elif is_single:
            self._base.zero_()  # numbers travel as they are, and are not rounded
        else:
            # the difference from infinity is no number: a minimum that begins there becomes the mean of the grains'
            torch.nan_to_num(self._before, nan=0.0, posinf=0.0, neginf=0.0, out=self._base)
        self.decrease.zero_()

    def restore(self) -> None:
        for place in self._places:
            place.take()
        torch._foreach_copy_(self._values, self._views_before)
        versions = [place.tensor._version for place in self._places]
        if versions != self._versions:
            # a backward that needs what the forward itself has written must fail, not find something else
            pairs = zip(self._places, versions, self._versions, strict=True)
            increment_version([place.tensor for place, now, before in pairs if now != before])
            self._versions = [place.tensor._version for place in self._places]

    def add_change(self) -> None:
        torch._foreach_copy_(self._views_after, [place.take() for place in self._places])
        self.decrease += torch.sub(self._base, self._after, out=self._after)

    def keep(self) -> None:
        """Leave the buffers as the only grain of the step has left them."""
        for place in self._places:
            if (left := place.take()) is not place.values:
                place.values.copy_(left)

    def apply(self, decrease: torch.Tensor, num_grains: int) -> None:
        self._after.copy_(decrease / num_grains if self._after.is_floating_point() else decrease.round())
        torch.sub(self._base, self._after, out=self._after)
        torch._foreach_copy_(self._values, self._views_after)


def _place_of(module: nn.Module, name: str) -> _Place:
    path, _, own_name = name.rpartition(".")
    buffers = module.get_submodule(path)._buffers
    tensor = buffers[own_name]
    assert tensor is not None
    return _Place(buffers, own_name, tensor, _as_real(tensor.data))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    parts = torch.split(flat, [values.numel() for values in like])
    return [part.view(values.shape) for part, values in zip(parts, like, strict=True)]
