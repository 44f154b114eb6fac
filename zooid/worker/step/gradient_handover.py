"""Hands the reduced gradients of a step to members that apply them without having reduced them."""

import torch
from torch import distributed as dist

from zooid.core.errors import PeerLost
from zooid.worker.member.seat import Seat
from zooid.worker.step.pending import begin_all_reduce, begin_broadcast
from zooid.worker.step.step_protocols import TrainedState
from zooid.worker.step.verdict import StageNumbers

_LACKS, _HOLDS, _HAS_APPLIED = 0.0, 1.0, 2.0


def hand_over(seat: Seat, state: TrainedState, is_prepared: bool | None) -> None:
    """Let all members of this stage hold the gradients; `is_prepared` is None for one that has applied them.

    Raises PeerLost if a member lacks them and no member holds them.
    """
    own_status = _HAS_APPLIED if is_prepared is None else _HOLDS if is_prepared else _LACKS
    ranks, group = seat.roster.ranks_of_stage(seat.stage), seat.groups.holders
    statuses = torch.zeros(len(ranks), dtype=torch.float64, device=seat.device)
    statuses[ranks.index(seat.rank)] = own_status
    if group is not None:
        begin_all_reduce(statuses, group).wait()
    status_of_rank = statuses.tolist()
    if _LACKS not in status_of_rank:
        return
    if _HOLDS not in status_of_rank:
        raise PeerLost(f"nobody holds the gradients of step {seat.roster.resume_step} of stage {seat.stage} any more")
    assert group is not None, "a member that is alone in its stage does not lack what it holds"
    parts = state.held_parts()
    _broadcast(parts, status_of_rank.index(_HOLDS), group, seat.device)
    if own_status == _LACKS:
        state.take_held(parts)


def give_to_copies(seat: Seat, state: TrainedState, numbers: StageNumbers) -> None:
    """Send the reduced gradients to the copies of this stage. Only the first replica has the group for it."""
    if seat.groups.copies is not None:
        _broadcast([*state.held_parts(), numbers.values()], 0, seat.groups.copies, seat.device)


def take_as_copy(seat: Seat, state: TrainedState) -> StageNumbers:
    """Receive and hold the gradients that the replicas of this stage have reduced."""
    assert seat.groups.copies is not None, "every copy has a replica"
    parts, numbers = state.held_parts(), StageNumbers.empty_values()
    _broadcast([*parts, numbers], 0, seat.groups.copies, seat.device)
    state.take_held(parts)
    return StageNumbers.of(numbers)


def _broadcast(parts: list[torch.Tensor], source: int, group: dist.ProcessGroup, device: torch.device) -> None:
    """Copy the parts from one rank of the group to all others, in one message, since a store charges for each."""
    views = [part.reshape(-1).view(torch.uint8) for part in parts]
    message = torch.cat(views).to(device)
    begin_broadcast(message, source, group).wait()
    if group.rank() != source:
        for part, received in zip(parts, torch.split(message, [view.numel() for view in views]), strict=True):
            part.copy_(received.clone().view(part.dtype).view_as(part))
