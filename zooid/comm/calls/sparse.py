"""All-reduce of sparse tensors: each rank gathers the indices and values of all ranks, and sums them."""

import math
from collections.abc import Callable, Sequence

import torch

from zooid.comm.calls.work import Completion
from zooid.core.errors import CommError

Gather = Callable[[int, torch.Tensor, Sequence[torch.Tensor]], Completion]
"""Begins the n-th all_gather of this call, given this rank's part and memory for every rank's part."""
NUM_GATHERS = 3


def all_reduce(tensor: torch.Tensor, num_ranks: int, gather: Gather) -> Completion:
    """Sum a sparse tensor over ranks, in place, with three gathers one after the other."""
    done = Completion()
    coalesced = tensor.detach().coalesce()
    num_dims, entry = coalesced.sparse_dim(), list(coalesced.shape[coalesced.sparse_dim() :])
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(num_ranks)]
    indices: list[torch.Tensor] = []
    values: list[torch.Tensor] = []

    def then(gathered: Completion, following: Callable[[], None]) -> None:
        def end() -> None:
            try:
                if gathered.error is not None:
                    raise gathered.error
                following()
            except Exception as error:  # noqa: BLE001  # the waiter must hear of it
                done.end(error)

        gathered.then(end)

    def gather_indices() -> None:
        check_counts([int(count) for count in counts], coalesced.shape[:num_dims])
        indices.extend(torch.empty((num_dims, int(count)), dtype=torch.int64) for count in counts)
        then(gather(1, coalesced.indices(), indices), gather_values)

    def gather_values() -> None:
        values.extend(torch.empty([int(count), *entry], dtype=coalesced.dtype) for count in counts)
        then(gather(2, coalesced.values(), values), add_up)

    def add_up() -> None:
        for rank, gathered in enumerate(indices):
            check_indices(gathered, coalesced.shape[:num_dims], rank)
        joined = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape, check_invariants=False)
        with torch.no_grad():  # a detached sparse tensor would keep its new indices to itself
            tensor.copy_(joined.coalesce())
        done.end()

    then(gather(0, torch.tensor([coalesced._nnz()]), counts), gather_indices)
    return done


def check_counts(counts: Sequence[int], shape: Sequence[int]) -> None:
    """Reject more entries than the tensor can hold, since memory is allocated for as many as a rank announces."""
    for rank, count in enumerate(counts):
        if not 0 <= count <= math.prod(shape):
            raise CommError(f"rank {rank} has {count} entries of a sparse tensor that has room for {math.prod(shape)}")


def check_indices(indices: torch.Tensor, shape: Sequence[int], rank: int) -> None:
    """Reject indices outside of the tensor, which torch would write to unchecked."""
    limits = torch.tensor(shape, dtype=torch.int64, device=indices.device).unsqueeze(1)
    if bool(((indices < 0) | (indices >= limits)).any()):
        raise CommError(f"rank {rank} has entries outside of a sparse tensor of {list(shape)}; was it built unchecked?")
