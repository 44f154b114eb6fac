"""Tensors in temporary files, for models that are larger than the memory of the member that looks at them.

A file is mapped into memory: the kernel reads pages of it when they are used, and takes them back when memory is short.
A member that checks, measures or prepares a model that fits nowhere whole keeps its weights and gradients that way.
"""

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from zooid.core.errors import InputError
from zooid.core.resources.machine import memory_bytes
from zooid.core.units import format_bytes

LEAST_BYTES = 2**20
"""Smaller tensors stay in memory, where they add up to little; every mapped file costs the kernel some work."""
COPIES = 5
"""Sets of tensors as large as the model that measuring it whole takes: weights, a copy of them to return to, gradients,
and two of an optimizer such as Adam."""
_RUNTIME_BYTES = 250 * 10**6
"""Python and PyTorch, before a model is built."""
_SHARE_OF_MEMORY = 0.85
"""The rest is for activations, and for what comes and goes."""
_SHARE_IN_MEMORY = 1 / 8
"""Share of the memory that a model may fill while it is built, before more of it goes to disk."""
_PREFIX = "zooid-tensor-"


def room_for_state(limit_bytes: int, runtime_bytes: int = 0) -> float:
    """The most parameters and buffers, in bytes, that can be measured at once within this memory.

    `runtime_bytes` is what the process has taken already, if that is known.
    """
    return (_SHARE_OF_MEMORY * limit_bytes - max(runtime_bytes, _RUNTIME_BYTES)) / COPIES


def fits_whole(model: nn.Module) -> bool:
    """Whether this process has memory for the model with its gradients and the state of an optimizer."""
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if not is_lazy(tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= room_for_state(memory_bytes())


def to_disk(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose values lie in a temporary file; small tensors, and those of a device, are returned as they are.

    The file has no name any more, so that it is gone when the tensor is, however this process ends.
    """
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes < LEAST_BYTES or not _is_plain(tensor):
        return tensor
    is_dense = num_bytes == tensor.untyped_storage().nbytes() and tensor.storage_offset() == 0
    with tempfile.NamedTemporaryFile(prefix=_PREFIX) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk would end this process later, without a word
        except OSError as error:
            raise InputError(
                f"{Path(file.name).parent} has no room for {format_bytes(num_bytes)} of a model that does not fit into "
                f"memory ({error.strerror}); name a folder on a larger disk in the environment variable TMPDIR"
            ) from error
        flat = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    copy = flat.as_strided(tensor.size(), tensor.stride()) if is_dense else flat.view(tensor.shape)
    return copy.copy_(tensor.detach())


def is_on_disk(tensor: torch.Tensor) -> bool:
    """Whether `to_disk` made it, or what it is a view of."""
    filename = tensor.untyped_storage().filename if _is_plain(tensor) else None
    return filename is not None and Path(filename).name.startswith(_PREFIX)


def release_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Let tensors on disk occupy no memory of this process until they are used again."""
    for tensor in tensors:
        if is_on_disk(tensor):
            storage = tensor.untyped_storage()
            address, num_bytes = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
            ctypes.CDLL(None).madvise(address, num_bytes, mmap.MADV_DONTNEED)


@contextmanager
def gradients_on_disk(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """While inside, gradients move to disk as soon as a backward has completed them."""

    def move(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = to_disk(parameter.grad)
        if is_on_disk(parameter.grad):
            give_back_freed()

    trained = [parameter for parameter in parameters if parameter.requires_grad]
    handles = [
        parameter.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]
        for parameter in trained
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def give_back_freed() -> None:
    """Give freed memory back to the system: glibc may keep as much as all gradients together, in pieces that fit none
    of the next ones."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle(model: nn.Module) -> None:
    """Bring a model that was built partly on disk to memory where it fits, and else all that is large to disk."""
    if fits_whole(model):
        bring_to_memory(model)
    else:
        _replace_storages([tensor for tensor in _on_processor(model) if not is_on_disk(tensor)], to_disk)


def bring_to_memory(model: nn.Module) -> None:
    """Copy a model's weights from disk to memory, to compute on them for long."""
    _replace_storages([tensor for tensor in _on_processor(model) if is_on_disk(tensor)], torch.clone)


def _on_processor(model: nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if _is_plain(tensor)]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Numbers in the processor's memory, and nothing else: kinds of tensors that libraries define are left alone."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.layout is torch.strided
    )


def _replace_storages(tensors: Sequence[torch.Tensor], copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put tensors on copies of their storages, one for each storage, so that views of each other stay so."""
    copies: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in copies:
            copies[key] = copied(torch.empty(0, dtype=torch.uint8).set_(storage)).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype)
        tensor.data = empty.set_(copies[key], tensor.storage_offset(), tensor.size(), tensor.stride())


class LargeTensorsOnDisk(TorchFunctionMode):
    """While inside, large tensors go to disk as they are made, from when those in memory fill their share of it."""

    def __init__(self) -> None:
        super().__init__()
        self._left_bytes = round(_SHARE_IN_MEMORY * memory_bytes())
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _is_plain(leaf):
                self._place(leaf)
        return result

    def _place(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        num_bytes = storage.nbytes()
        if num_bytes < LEAST_BYTES or storage.filename is not None or self._is_known(storage):
            return
        if num_bytes <= self._left_bytes:
            self._count(storage, num_bytes)
        elif num_bytes == tensor.numel() * tensor.element_size():  # a part of something else stays what it is
            tensor.data = to_disk(tensor)

    def _is_known(self, storage: torch.UntypedStorage) -> bool:
        known = self._known.get(storage._cdata)
        return known is not None and known() is not None

    def _count(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        key = storage._cdata
        self._left_bytes -= num_bytes

        def freed(_: Any) -> None:
            self._left_bytes += num_bytes
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
