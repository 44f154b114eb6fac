"""The arguments that torch.distributed passes to a process group, checked and brought into one form."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist

SUM = dist.ReduceOp(dist.ReduceOp.SUM)


def single(tensors: Any, call: str) -> torch.Tensor:
    """Return the only tensor of a call; torch passes a list, from when a process could have several GPUs."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{call} takes one tensor per call, not {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor


def operation(opts: Any) -> Any:
    """Return the ReduceOp of a call, which torch passes by itself, inside options, or not at all for a sum."""
    if opts is None:
        return SUM
    return getattr(opts, "reduceOp", opts)


def timeout_s(opts: Any) -> float | None:
    """Return the call's own timeout, if it has one; torch passes a negative one otherwise."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else -1.0
    return seconds if seconds > 0 else None


def check_same_type(tensors: Sequence[torch.Tensor], call: str) -> None:
    kinds = {(tensor.dtype, tensor.device, tensor.layout) for tensor in tensors}
    if len(kinds) != 1:
        raise ValueError(f"{call} needs tensors of one type on one device, not of {len(kinds)}")


def check_devices(tensors: Sequence[torch.Tensor], call: str) -> None:
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{call} has a tensor on {tensor.device}; the backend zooid takes tensors on cpu and cuda")


def check_count(values: Sequence[Any], num_ranks: int, call: str, what: str) -> None:
    if len(values) != num_ranks:
        raise ValueError(f"{call} has {len(values)} {what} for {num_ranks} ranks; it needs one for each")


def check_times(large: torch.Tensor, small: torch.Tensor, num_ranks: int, call: str) -> None:
    if large.numel() != small.numel() * num_ranks:
        raise ValueError(
            f"{call} has tensors of {large.numel()} and {small.numel()} elements; the larger must have {num_ranks} "
            "times as many as the smaller, one part for each rank"
        )


def split_sizes(tensor: torch.Tensor, sizes: Sequence[int], num_ranks: int, what: str) -> list[int]:
    """Return the splits of all_to_all_single's input or output: as given, else even."""
    length = tensor.shape[0] if tensor.dim() else 0
    if sizes:
        if len(sizes) != num_ranks or sum(sizes) != length:
            raise ValueError(
                f"all_to_all_single splits its {what} of length {length} into {list(sizes)}: there must be "
                f"{num_ranks} splits, which sum to the length"
            )
        return list(sizes)
    if length % num_ranks:
        raise ValueError(f"all_to_all_single cannot split its {what} of length {length} evenly among {num_ranks} ranks")
    return [length // num_ranks] * num_ranks
