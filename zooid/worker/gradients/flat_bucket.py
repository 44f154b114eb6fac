"""Gradients in flat buffers, one for each dtype, so that one collective call sums many of them."""

from collections.abc import Callable, Sequence

import torch

Values = list[torch.Tensor | None]
"""A value for each parameter; None where the loss did not reach the parameter."""
NewBuffer = Callable[[torch.Tensor, int], torch.Tensor]
"""(a tensor of the buffer's dtype and device, number of elements) -> the buffer."""

_NEUTRAL = -0.0
"""Stands for a missing gradient: x + -0.0 is x for every x, while -0.0 + 0.0 is 0.0."""


class FlatBucket:
    """Views on flat buffers: gradients, then a flag for each gradient that exists, then other values."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        others: Sequence[torch.Tensor],
        new_buffer: NewBuffer = torch.Tensor.new_empty,
        alignment_bytes: int = 1,
    ) -> None:
        """`parameters` and `others` give the shapes. Each gradient starts at a multiple of `alignment_bytes`."""
        self._dtypes = [parameter.dtype for parameter in parameters]
        samples = {value.dtype: value for value in (*others, *parameters)}
        dtypes = list(dict.fromkeys(self._dtypes))
        flags = [samples[dtype].new_empty(self._dtypes.count(dtype)) for dtype in dtypes]
        starts: list[int] = []
        ends: dict[torch.dtype, int] = {}
        for values, alignment in ((parameters, alignment_bytes), (flags, 1), (others, 1)):
            for value in values:
                multiple = max(1, alignment // value.element_size())
                start = -(-ends.get(value.dtype, 0) // multiple) * multiple
                starts.append(start)
                ends[value.dtype] = start + value.numel()
        self.buffers = {dtype: new_buffer(samples[dtype], end) for dtype, end in ends.items()}
        views = [
            self.buffers[value.dtype][start : start + value.numel()].view(value.shape)
            for value, start in zip((*parameters, *flags, *others), starts, strict=True)
        ]
        num_parameters, end_of_flags = len(parameters), len(parameters) + len(flags)
        self._gradients = views[:num_parameters]
        self._flags = dict(zip(dtypes, views[num_parameters:end_of_flags], strict=True))
        self.others = views[end_of_flags:]

    def fill(self, gradients: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor] = ()) -> None:
        """Copy these values in."""
        pairs = list(zip(self._gradients, gradients, strict=True))
        present = [(view, gradient) for view, gradient in pairs if gradient is not None]
        if present:
            torch._foreach_copy_([view for view, _ in present], [gradient for _, gradient in present])
        for view, gradient in pairs:
            if gradient is None:
                view.fill_(_NEUTRAL)
        exists = [(dtype, gradient is not None) for dtype, gradient in zip(self._dtypes, gradients, strict=True)]
        for dtype, flags in self._flags.items():
            flags.copy_(torch.tensor([flag for own_dtype, flag in exists if own_dtype == dtype]))
        for view, other in zip(self.others, others, strict=True):
            view.copy_(other)

    def gradients(self) -> Values:
        """The gradients, or their sums once the buffers are summed; None where no member had one."""
        flags = {dtype: iter(flags.tolist()) for dtype, flags in self._flags.items()}
        return [
            gradient if next(flags[dtype]) else None
            for gradient, dtype in zip(self._gradients, self._dtypes, strict=True)
        ]
