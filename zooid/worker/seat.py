"""Where a member sits in its roster, and the process groups through which it reaches the others."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed as dist

from zooid.comm import ObjectRendezvous, Options, ProcessGroup
from zooid.core import keys
from zooid.core.abort import Abort
from zooid.core.errors import PlanError
from zooid.core.plan import Plan
from zooid.core.roster import Roster
from zooid.core.spec import RehearsalSpec, WorkerSpec
from zooid.schedule.actions import Kind
from zooid.store import ObjectStore
from zooid.worker.underway import Underway, receiving, sending

MEETING_S = 10.0
"""How long members of a roster that they have just agreed on wait for one another."""


@dataclass(frozen=True)
class Seat:
    """One member's place."""

    roster: Roster
    rank: int
    replica: int
    stage: int
    stage_group: dist.ProcessGroup | None
    """The replicas of this stage; None where this is the only one."""
    tie_groups: dict[int, dist.ProcessGroup]
    """By number of the tie: the stages of this replica that share it, where this one is among them."""
    device: torch.device
    """Where small sums over all members are made: NCCL wants them on a GPU."""
    groups: tuple[tuple[dist.ProcessGroup | None, Sequence[int]], ...]
    """All groups that this member is in, with the ranks of their members in the roster."""
    directions: dict[Kind, dist.ProcessGroup | None]
    """What carries messages forward and backward, where each way needs a group of its own."""

    @property
    def name(self) -> str:
        return self.roster.members[self.rank].name

    @property
    def lost(self) -> list[str]:
        """Names of members that have left or are lost, as far as this one has noticed in any group."""
        ranks = {
            ranks[lost] for group, ranks in self.groups if isinstance(group, ProcessGroup) for lost in group.lost_ranks
        }
        return [self.roster.members[rank].name for rank in sorted(ranks)]

    def neighbour(self, distance: int) -> int:
        """Rank of the member that many stages on, in the same replica."""
        return self.roster.rank_at(self.replica, self.stage + distance)

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """The sums of these numbers over all members."""
        if len(self.roster.members) == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def meet(self) -> None:
        """Wait for all members; a barrier that every backend has."""
        self.add_up([0.0])


_DISTANCE = {Kind.SEND_FORWARD: 1, Kind.RECEIVE_FORWARD: -1, Kind.SEND_BACKWARD: -1, Kind.RECEIVE_BACKWARD: 1}


class Messenger:
    """Messages to and from the neighbouring stages. The grain is the tag, so that none waits for one before it."""

    def __init__(self, seat: Seat) -> None:
        self._directions = seat.directions
        self._ranks = {
            kind: seat.neighbour(distance)
            for kind, distance in _DISTANCE.items()
            if 0 <= seat.stage + distance < seat.roster.num_stages
        }
        self._last_sent: dict[Kind, Underway] = {}

    def send(self, kind: Kind, grain: int, message: torch.Tensor) -> Underway:
        work = sending(message, self._ranks[kind], grain, self._directions.get(kind))
        sent = Underway([work], after=self._last_sent.get(kind))
        self._last_sent[kind] = sent
        return sent

    def receive(self, kind: Kind, grain: int, message: torch.Tensor) -> Underway:
        return Underway([receiving(message, self._ranks[kind], grain, self._directions.get(kind))])


def take_seat(
    spec: WorkerSpec | RehearsalSpec,
    store: ObjectStore,
    plan: Plan,
    roster: Roster,
    ties: Sequence[tuple[int, ...]],
    device: torch.device,
    abort: Abort,
) -> Seat:
    """Meet the others of the roster; groups are made by everyone in the same order. `ties` are stages that share
    parameters."""
    rank = roster.rank_of(spec.member)
    own = roster.members[rank]
    if plan.transport == "nccl" and device.type != "cuda":
        raise PlanError(
            f"the plan's transport is nccl, which is for GPUs, but member {spec.member} has none; give tcp or gloo"
        )
    options = Options(transport="tcp" if plan.transport == "tcp" else "store", all_reduce=plan.all_reduce)
    meeting_s = spec.timeout_s if roster.change == 0 else min(spec.timeout_s, MEETING_S)
    rendezvous = ObjectRendezvous(
        store,
        keys.comm_of(spec.run, roster.number, roster.change),
        timeout_s=meeting_s,
        abort=abort,
        options=options,
    )
    dist.init_process_group(
        plan.transport if plan.transport in ("gloo", "nccl") else "zooid",
        store=rendezvous,
        rank=rank,
        world_size=len(roster.members),
        timeout=datetime.timedelta(seconds=meeting_s),
        device_id=device if plan.transport == "nccl" else None,
    )
    stage_groups = (
        [dist.new_group(roster.ranks_of_stage(stage)) for stage in range(roster.num_stages)]
        if roster.num_replicas > 1
        else []
    )
    stage_group = stage_groups[own.stage] if stage_groups else None
    groups: list[tuple[dist.ProcessGroup | None, Sequence[int]]] = [
        (dist.group.WORLD, range(len(roster.members))),
        (stage_group, roster.ranks_of_stage(own.stage)),
    ]
    tie_groups: dict[int, dist.ProcessGroup] = {}
    for number, stages in enumerate(ties):
        for replica in range(roster.num_replicas):
            ranks = [roster.rank_at(replica, stage) for stage in stages]
            group = dist.new_group(ranks)
            if replica == own.replica and own.stage in stages:
                tie_groups[number] = group
                groups.append((group, ranks))
    directions: dict[Kind, dist.ProcessGroup | None] = {}
    if plan.transport == "nccl" and roster.num_stages > 1:
        # NCCL keeps the calls between two ranks in one order: two ways in one group would wait for one another
        for kinds in ((Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD), (Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD)):
            group = dist.new_group()
            directions |= dict.fromkeys(kinds, group)
    for group, _ in groups:
        if isinstance(group, ProcessGroup):
            group.engine.timeout_s = spec.timeout_s
    device = device if plan.transport == "nccl" else torch.device("cpu")
    return Seat(roster, rank, own.replica, own.stage, stage_group, tie_groups, device, tuple(groups), directions)
