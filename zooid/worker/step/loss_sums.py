"""The losses and weights of a step's grains, and their sums.

They travel with the gradients of the last stage. So whoever holds the reduced gradients of a step also knows its loss.
Every grain has a place of its own, and all are added up in a fixed order: which replica has computed which grain makes
no difference, not even in the last bit.
"""

import torch

NUM_SUMS = 2
"""The loss of a grain and its weight, as 64-bit floats."""
_NUM_BYTES = 8 * NUM_SUMS


def slots_for(num_grains: int, like: torch.Tensor) -> torch.Tensor:
    """Room for the losses of so many grains, in numbers of the type of the gradients."""
    return like.new_zeros(num_grains * _NUM_BYTES)


def fill(slots: torch.Tensor, losses: torch.Tensor) -> None:
    """Write losses and weights into the slots, one byte in each; those of others are 0, and so are their bytes.

    A byte plus zeros is exact in every type, bfloat16 included, in whatever order replicas are added up.
    """
    slots.zero_()
    slots[: losses.numel() * 8].copy_(losses.reshape(-1).view(torch.uint8))


def read(slots: torch.Tensor, num_grains: int) -> torch.Tensor:
    """The losses and weights of so many grains, from slots that are summed over the replicas."""
    return slots[: num_grains * _NUM_BYTES].to(torch.uint8).view(torch.float64).view(-1, NUM_SUMS)


def total(losses: torch.Tensor) -> torch.Tensor:
    """The sums over all grains: of neighbours, of neighbouring sums, and so on."""
    while len(losses) > 1:
        even = len(losses) // 2 * 2
        losses = torch.cat([losses[0:even:2] + losses[1:even:2], losses[even:]])
    return losses[0]
