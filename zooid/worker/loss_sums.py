"""The sums of a step's losses and weights over all replicas.

They travel with the gradients of the last stage. So whoever holds the reduced gradients of a step also knows its loss,
and every member of the stage finds the same bits.
"""

import torch

NUM_SUMS = 2
"""The sum of the losses and the sum of their weights, as 64-bit floats."""
_NUM_BYTES = 8 * NUM_SUMS


def slots_for(num_replicas: int, like: torch.Tensor) -> torch.Tensor:
    """Room for the sums of every replica, in numbers of the type of the gradients."""
    return like.new_zeros(num_replicas * _NUM_BYTES)


def fill(slots: torch.Tensor, replica: int, sums: torch.Tensor) -> None:
    """Write a replica's sums into its own slots, one byte in each. All other slots become 0.

    A byte plus zeros is exact in every type, bfloat16 included, in whatever order replicas are added up.
    """
    slots.zero_()
    own = slots[replica * _NUM_BYTES : (replica + 1) * _NUM_BYTES]
    own.copy_(sums.view(torch.uint8))


def total(slots: torch.Tensor) -> torch.Tensor:
    """The sums over all replicas, added up in the order of replicas."""
    sums = slots.to(torch.uint8).view(torch.float64).view(-1, NUM_SUMS)
    result = sums[0].clone()
    for one in sums[1:]:
        result += one
    return result
