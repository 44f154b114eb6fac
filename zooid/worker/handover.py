"""How the gradients of a step that stands get to those replicas of a stage that lack them."""

import torch
from torch import distributed as dist

from zooid.core.errors import PeerLost
from zooid.worker.seat import Seat
from zooid.worker.state import TrainingState

_LACKS, _HOLDS, _HAS_APPLIED = 0.0, 1.0, 2.0


def hand_over(seat: Seat, state: TrainingState, is_prepared: bool | None) -> None:
    """Let every replica of this stage hold the gradients. `is_prepared` is None for a member that has applied them.

    Raises PeerLost if somebody lacks them and nobody holds them.
    """
    standing = _HAS_APPLIED if is_prepared is None else _HOLDS if is_prepared else _LACKS
    everybody = torch.zeros(seat.roster.num_replicas, dtype=torch.float64, device=seat.device)
    everybody[seat.replica] = standing
    if seat.stage_group is not None:
        dist.all_reduce(everybody, group=seat.stage_group)
    found = everybody.tolist()
    if _LACKS not in found:
        return
    if _HOLDS not in found:
        raise PeerLost(f"nobody holds the gradients of step {seat.roster.resume_step} of stage {seat.stage} any more")
    source = seat.roster.rank_at(found.index(_HOLDS), seat.stage)
    parts = state.parts_held()
    for part in parts:
        on_wire = part.to(seat.device)
        dist.broadcast(on_wire, src=source, group=seat.stage_group)
        part.copy_(on_wire)
    if standing == _LACKS:
        state.take_held(parts)
