"""Connects a member to its peers over the plan's transport."""

import torch

from zooid.comm import ObjectRendezvous, Options, connect_members, leave
from zooid.core.abort import Abort
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.store import ObjectStore
from zooid.worker.peers.direct_peers import DirectPeers
from zooid.worker.peers.roster_groups import Peers
from zooid.worker.peers.store_peers import StorePeers
from zooid.worker.peers.torch_peers import TorchPeers


def open_peers(
    spec: WorkerSpec,
    store: ObjectStore,
    plan: Plan,
    roster: Roster,
    device: torch.device,
    abort: Abort,
    change: PlannedChange | None = None,
    connecting: Abort | None = None,
) -> Peers:
    """Connect to all members of a claim's first roster, where the transport needs a rendezvous.

    A process that joins with a planned change connects to the members of the roster that it changes. `connecting` ends
    only the rendezvous.
    """
    if plan.transport == "nccl" and device.type != "cuda":
        raise PlanError(
            f"the plan's transport is nccl, which needs GPUs, but member {spec.member} has none; give tcp or gloo"
        )
    timeout_s = spec.timeout_s
    options = Options(transport="tcp" if plan.transport == "tcp" else "store", all_reduce=plan.all_reduce)
    if plan.transport == "store":
        joins = isinstance(spec, WorkerSpec) and spec.joins_stage is not None
        return StorePeers(store, roster, spec.member, options, timeout_s=timeout_s, abort=abort, joins=joins)
    prefix = keys.comm_of(spec.run, roster.number, roster.change)
    rendezvous = ObjectRendezvous(store, prefix, timeout_s=timeout_s, abort=abort, options=options)
    if plan.transport != "tcp":
        return TorchPeers(plan.transport, rendezvous, spec.member, device, timeout_s=timeout_s)

    def rendezvous_of(change: PlannedChange, abort: Abort) -> ObjectRendezvous:
        joining = keys.joining_of(spec.run, change.number, change.change, change.attempt)
        return ObjectRendezvous(store, joining, timeout_s=timeout_s, abort=abort, options=options)

    names = [seat.name for seat in roster.seats]
    num_members = len(names)
    if change is not None:
        names += [seat.name for seat in change.joiners(roster)]
    links = connect_members(
        rendezvous if change is None else rendezvous_of(change, connecting or abort),
        spec.member,
        names,
        options,
        timeout_s=timeout_s,
        abort=connecting or abort,
        num_connected=0 if change is None else num_members,
    )

    def on_left() -> None:
        if change is None:
            leave(store, (prefix,), names.index(spec.member), num_members, timeout_s=timeout_s)

    return DirectPeers(links, timeout_s=timeout_s, abort=abort, rendezvous=rendezvous_of, on_left=on_left)
