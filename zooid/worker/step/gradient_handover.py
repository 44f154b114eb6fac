"""How the gradients of a step get to those who apply them without having reduced them."""

import torch
from torch import distributed as dist

from zooid.core.errors import PeerLost
from zooid.worker.member.seat import Seat
from zooid.worker.state.training_state import TrainingState
from zooid.worker.step.pending import adding_up, copying
from zooid.worker.step.vote_numbers import StageNumbers

_LACKS, _HOLDS, _HAS_APPLIED = 0.0, 1.0, 2.0


def hand_over(seat: Seat, state: TrainingState, is_prepared: bool | None) -> None:
    """Let everyone who has this stage hold the gradients. `is_prepared` is None for a member that has applied them.

    Raises PeerLost if somebody lacks them and nobody holds them.
    """
    standing = _HAS_APPLIED if is_prepared is None else _HOLDS if is_prepared else _LACKS
    ranks, group = seat.roster.ranks_of_stage(seat.stage), seat.groups.holders
    everybody = torch.zeros(len(ranks), dtype=torch.float64, device=seat.device)
    everybody[ranks.index(seat.rank)] = standing
    if group is not None:
        adding_up(everybody, group).wait()
    found = everybody.tolist()
    if _LACKS not in found:
        return
    if _HOLDS not in found:
        raise PeerLost(f"nobody holds the gradients of step {seat.roster.resume_step} of stage {seat.stage} any more")
    assert group is not None, "a member that is alone in its stage does not lack what it holds"
    parts = state.parts_held()
    _pass_on(parts, found.index(_HOLDS), group, seat.device)
    if standing == _LACKS:
        state.take_held(parts)


def give_to_copies(seat: Seat, state: TrainingState, numbers: StageNumbers) -> None:
    """Let the copies of this stage hold what its replicas have reduced. The first replica does so for all."""
    if seat.groups.copies is not None:
        _pass_on([*state.parts_held(), numbers.values()], 0, seat.groups.copies, seat.device)


def take_as_copy(seat: Seat, state: TrainingState) -> StageNumbers:
    """Hold what the replicas of this stage have reduced."""
    assert seat.groups.copies is not None, "every copy has a replica"
    parts, numbers = state.parts_held(), StageNumbers.room()
    _pass_on([*parts, numbers], 0, seat.groups.copies, seat.device)
    state.take_held(parts)
    return StageNumbers.of(numbers)


def _pass_on(parts: list[torch.Tensor], source: int, group: dist.ProcessGroup, device: torch.device) -> None:
    """Copy these parts from one rank of the group to all others, in one message, since a store charges for each."""
    views = [part.reshape(-1).view(torch.uint8) for part in parts]
    message = torch.cat(views).to(device)
    copying(message, source, group).wait()
    if group.rank() != source:
        for part, found in zip(parts, torch.split(message, [view.numel() for view in views]), strict=True):
            part.copy_(found.clone().view(part.dtype).view_as(part))
