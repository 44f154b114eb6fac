"""What torch.distributed hands to a process group, checked and brought into one form."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist

SUM = dist.ReduceOp(dist.ReduceOp.SUM)


def single(tensors: Any, call: str) -> torch.Tensor:
    """The one tensor of a call that takes a list of one, for the GPUs that a process once had several of."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{call} takes one tensor per call, not {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor


def operation(opts: Any) -> Any:
    """The ReduceOp of a call, which torch passes by itself, inside options, or not at all for a sum."""
    if opts is None:
        return SUM
    return getattr(opts, "reduceOp", opts)


def timeout_s(opts: Any) -> float | None:
    """The limit that a call has of its own; torch marks its absence with a negative one."""
    limit = getattr(opts, "timeout", None)
    seconds = limit.total_seconds() if limit is not None else -1.0
    return seconds if seconds > 0 else None


def check_same_type(tensors: Sequence[torch.Tensor], call: str) -> None:
    kinds = {(tensor.dtype, tensor.device, tensor.layout) for tensor in tensors}
    if len(kinds) != 1:
        raise ValueError(f"{call} needs tensors of one type on one device, not of {len(kinds)}")


def check_devices(tensors: Sequence[torch.Tensor], call: str) -> None:
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{call} has a tensor on {tensor.device}; the backend moves those of cpu and cuda")


def check_count(given: Sequence[Any], num_ranks: int, call: str, what: str) -> None:
    if len(given) != num_ranks:
        raise ValueError(f"{call} has {len(given)} {what} for {num_ranks} ranks; it needs one for each")


def check_times(large: torch.Tensor, small: torch.Tensor, num_ranks: int, call: str) -> None:
    if large.numel() != small.numel() * num_ranks:
        raise ValueError(
            f"{call} has tensors of {large.numel()} and {small.numel()} elements; the larger must have {num_ranks} "
            "times as many as the smaller, one part for each rank"
        )


def split_sizes(tensor: torch.Tensor, sizes: Sequence[int], num_ranks: int, what: str) -> list[int]:
    """How all_to_all_single cuts its input or output: as told, else evenly."""
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
