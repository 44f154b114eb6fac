"""The losses and weights of a step's grains, and their sums.

They travel with the gradients of the last stage, so whoever holds the reduced gradients of a step also knows its loss.
Every grain has its own slot, and all slots are added in a fixed order. Not even the last bit of the sums depends on
which replica computed which grain.
"""

import torch

NUM_SUMS = 2
"""Number of values for each grain, its loss and its weight, as 64-bit floats."""
_GRAIN_BYTES = 8 * NUM_SUMS


def slots_for(num_grains: int, like: torch.Tensor) -> torch.Tensor:
    """Slots for the losses of so many grains, in the dtype of the gradients."""
    return like.new_zeros(num_grains * _GRAIN_BYTES)


def fill(slots: torch.Tensor, losses: torch.Tensor) -> None:
    """Write losses and weights into the slots, one byte in each. The slots of other replicas' grains are 0.

    A byte plus zeros is exact in every dtype, bfloat16 included, in whatever order replicas are added.
    """
    slots.zero_()
    slots[: losses.numel() * 8].copy_(losses.reshape(-1).view(torch.uint8))


def read(slots: torch.Tensor, num_grains: int) -> torch.Tensor:
    """The losses and weights of so many grains, from slots that are summed over the replicas."""
    return slots[: num_grains * _GRAIN_BYTES].to(torch.uint8).view(torch.float64).view(-1, NUM_SUMS)


def total(losses: torch.Tensor) -> torch.Tensor:
    """The sums over all grains, added in pairs, then in pairs of pairs, and so on."""
    while len(losses) > 1:
        even = len(losses) // 2 * 2
        losses = torch.cat([losses[0:even:2] + losses[1:even:2], losses[even:]])
    return losses[0]
