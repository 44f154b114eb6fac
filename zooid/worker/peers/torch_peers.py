"""Members that train over a backend of PyTorch: Gloo, or NCCL for GPUs."""

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import distributed as dist

from zooid.comm import ObjectRendezvous
from zooid.core.abort import Abort
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.schedule.actions import Kind
from zooid.worker.peers.roster_groups import DISTANCES, Groups, Overlaps


@dataclass(frozen=True)
class TorchPeers:
    """Peers over the process groups of PyTorch, which do not survive a lost member."""

    backend: Literal["gloo", "nccl"]
    rendezvous: ObjectRendezvous
    name: str
    device: torch.device
    timeout_s: float

    @property
    def lost(self) -> Collection[str]:
        return ()

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]], overlaps: Overlaps) -> Groups:
        """The member's groups. All members make all groups in the same order."""
        rank = roster.rank_of(self.name)
        member = roster.members[rank]
        dist.init_process_group(
            self.backend,
            store=self.rendezvous,
            rank=rank,
            world_size=len(roster.members),
            timeout=datetime.timedelta(seconds=self.timeout_s),
            device_id=self.device if self.backend == "nccl" else None,
        )
        stages = []
        if roster.num_replicas > 1:
            stages = [dist.new_group(roster.ranks_of_stage(stage)) for stage in range(roster.num_stages)]
        tied: dict[int, dist.ProcessGroup] = {}
        for number, tied_stages in enumerate(ties):
            for replica in range(roster.num_replicas):
                group = dist.new_group([roster.rank_at(replica, stage) for stage in tied_stages])
                if replica == member.replica and member.stage in tied_stages:
                    tied[number] = group
        stage = stages[member.stage] if stages else None
        return Groups(
            everyone=dist.group.WORLD if len(roster.members) > 1 else None,
            stage=stage,
            holders=stage,
            ties=tied,
            neighbours=self._neighbours(roster, member.replica, member.stage),
        )

    def _neighbours(self, roster: Roster, replica: int, stage: int) -> dict[Kind, tuple[dist.ProcessGroup, int]]:
        world = dist.group.WORLD
        assert world is not None
        carriers = dict.fromkeys(DISTANCES, world)
        if self.backend == "nccl" and roster.num_stages > 1:
            # NCCL keeps the calls between two ranks in order: in one group, both directions would wait for each other
            for kinds in ((Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD), (Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD)):
                carriers |= dict.fromkeys(kinds, dist.new_group())
        return {
            kind: (carriers[kind], roster.rank_at(replica, stage + distance))
            for kind, distance in DISTANCES.items()
            if 0 <= stage + distance < roster.num_stages
        }

    def connect(self, change: PlannedChange, roster: Roster, abort: Abort) -> None:
        """Do nothing: nobody plans changes of a roster that these backends connect."""

    def announce_survey(self) -> None:
        """Do nothing: the others notice that connections break."""

    def end(self, *, is_clean: bool) -> None:
        if is_clean and dist.is_initialized():
            dist.destroy_process_group()

    def close(self, *, is_clean: bool) -> None:
        """Do nothing: `end` leaves all groups."""
