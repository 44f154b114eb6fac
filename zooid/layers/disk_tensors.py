"""Tensors in temporary files, for models that are larger than the memory of a member.

A file is mapped into memory: the kernel reads its pages when they are used, and evicts them when memory is short. A
member that checks, measures or prepares a model that is too large for it keeps weights and gradients in such files.
"""

import ctypes
import mmap
import os
import tempfile
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
from zooid.layers.live_storages import LiveStorages

MIN_BYTES = 2**20
"""Smaller tensors stay in memory, where they add up to little; every mapped file costs the kernel some work."""
COPIES = 5
"""Sets of tensors as large as the model that measuring needs: weights, their backup, gradients, and two for Adam."""
_RUNTIME_BYTES = 250 * 10**6
"""Memory of Python and PyTorch before a model is built."""
_STATE_FRACTION = 0.85
"""Fraction of memory for these sets; the rest is for activations and temporary tensors."""
_BUILD_FRACTION = 1 / 8
"""Fraction of memory that a model may fill while it is built, before further tensors go to disk."""
_PREFIX = "zooid-tensor-"


def room_for_state(limit_bytes: int, runtime_bytes: int = 0) -> float:
    """Return the most bytes of parameters and buffers that can be measured at once within this memory.

    `runtime_bytes` is the memory that the process already uses, if known.
    """
    return (_STATE_FRACTION * limit_bytes - max(runtime_bytes, _RUNTIME_BYTES)) / COPIES


def fits_whole(model: nn.Module) -> bool:
    """Whether the model with its gradients and optimizer state fits into the memory of this process."""
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if not is_lazy(tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= room_for_state(memory_bytes())


def to_disk(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in a temporary file; small tensors and those on other devices are returned as they are.

    The file is unlinked at once, so that it vanishes with the tensor, however this process ends.
    """
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes < MIN_BYTES or not _is_plain(tensor):
        return tensor
    is_dense = num_bytes == tensor.untyped_storage().nbytes() and tensor.storage_offset() == 0
    with tempfile.NamedTemporaryFile(prefix=_PREFIX) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk would kill this process later, silently
        except OSError as error:
            raise InputError(
                f"{Path(file.name).parent} has no room for {format_bytes(num_bytes)} of a model that does not fit into "
                f"memory ({error.strerror}); name a folder on a larger disk in the environment variable TMPDIR"
            ) from error
        flat = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    copy = flat.as_strided(tensor.size(), tensor.stride()) if is_dense else flat.view(tensor.shape)
    return copy.copy_(tensor.detach())


def is_on_disk(tensor: torch.Tensor) -> bool:
    """Whether `to_disk` made this tensor or its base."""
    filename = tensor.untyped_storage().filename if _is_plain(tensor) else None
    return filename is not None and Path(filename).name.startswith(_PREFIX)


def release_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Release the memory of tensors on disk until they are used again."""
    for tensor in tensors:
        if is_on_disk(tensor):
            storage = tensor.untyped_storage()
            address, num_bytes = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
            ctypes.CDLL(None).madvise(address, num_bytes, mmap.MADV_DONTNEED)


@contextmanager
def gradients_on_disk(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """While inside, each gradient moves to disk as soon as a backward completes it."""

    def move(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = to_disk(parameter.grad)
        if is_on_disk(parameter.grad):
            give_back_freed()

    handles = [
        parameter.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]
        for parameter in parameters
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def give_back_freed() -> None:
    """Return freed memory to the system, since glibc may keep as much as all gradients, in unusable pieces."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle(model: nn.Module) -> None:
    """Move a model that was built partly on disk to memory if it fits; otherwise move all large tensors to disk."""
    if fits_whole(model):
        bring_to_memory(model)
    else:
        _replace_storages([tensor for tensor in _on_processor(model) if not is_on_disk(tensor)], to_disk)


def bring_to_memory(model: nn.Module) -> None:
    """Copy a model's weights from disk to memory, where repeated computation is faster."""
    _replace_storages([tensor for tensor in _on_processor(model) if is_on_disk(tensor)], torch.clone)


def _on_processor(model: nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if _is_plain(tensor)]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a dense one in main memory, and not of a subclass that a library defines."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.layout is torch.strided
    )


def _replace_storages(tensors: Sequence[torch.Tensor], copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Move tensors to copies of their storages; tensors that share a storage still share one."""
    copies: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in copies:
            copies[key] = copy(torch.empty(0, dtype=torch.uint8).set_(storage)).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype)
        tensor.data = empty.set_(copies[key], tensor.storage_offset(), tensor.size(), tensor.stride())


class LargeTensorsOnDisk(TorchFunctionMode):
    """While inside, large new tensors go to disk once those in memory fill their fraction of it."""

    def __init__(self) -> None:
        super().__init__()
        self._limit_bytes = round(_BUILD_FRACTION * memory_bytes())
        self._in_memory = LiveStorages()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and _is_plain(leaf):
                self._keep_or_move(leaf)
        return result

    def _keep_or_move(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        num_bytes = storage.nbytes()
        if num_bytes < MIN_BYTES or storage.filename is not None or storage in self._in_memory:
            return
        if self._in_memory.num_bytes + num_bytes <= self._limit_bytes:
            self._in_memory.add(storage, num_bytes)
        elif num_bytes == tensor.nbytes:  # a view of a part stays in memory
            tensor.data = to_disk(tensor)
