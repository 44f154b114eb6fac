"""The task `train` of the worker program: take one seat of a run's roster, and train there.

When a member is lost, the others agree on the next roster and go on under it, with the state that they have. When a
change is planned, all switch to the next roster between two steps.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, ObjectNotFound, PeerLost
from zooid.core.records import encode_record
from zooid.core.resources.process_memory import peak_resident_bytes
from zooid.core.runs import keys
from zooid.core.runs.events import MemberTrained
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.core.runs.timeline import Timeline
from zooid.store import EventWriter, Fence, ObjectStore
from zooid.store.member_program import EXIT_FAILED, end_process
from zooid.worker.member.invitation import NotInvited, await_seat
from zooid.worker.member.job_output import shown_prints
from zooid.worker.member.role import Role
from zooid.worker.member.start_watch import StartWatch
from zooid.worker.member.stop_listener import StopListener
from zooid.worker.member.training_member import Member
from zooid.worker.peers import Peers, open_peers
from zooid.worker.state.stage_state import Loaded

logger = logging.getLogger(__name__)

_CHECKPOINT_PAUSE_S = 0.2
_MAX_READS = 10
"""Number of checkpoints that a process that joins tries to read."""


def train(spec: WorkerSpec, store: ObjectStore, abort: Abort, kind: type[Member] = Member) -> None:
    """Take the seat that the roster gives this member, and train to the end of the run.

    `kind` may be that of members which sleep instead of computing.
    """
    try:
        _train(spec, store, abort, kind)
    except NotInvited as error:
        logger.warning("%s ends: %s", spec.member, error)


def _train(spec: WorkerSpec, store: ObjectStore, abort: Abort, kind: type[Member]) -> None:
    with open_member(spec, store, abort, kind) as member:
        roster, next_roster = member.first_roster, None
        last: tuple[int, Timeline] | None = None
        while True:
            try:
                with member.under(roster) as (trainer, keeper):
                    try:
                        following = trainer.run()
                    finally:
                        last = trainer.last_timeline or last  # the last roster may have no full step
                    abort.check()
                    if following is None:
                        if last is not None:
                            step, timeline = last
                            store.put(keys.timeline(step, spec.member), encode_record(timeline))
                        keeper.finish(trainer.num_applied, trainer.scale, trainer.ledger)
                if following is None:
                    break
                next_roster = member.switch(following)
            except (PeerLost, CommTimeout) as error:
                next_roster = member.next_roster(roster, error)
            if next_roster is None:
                break
            roster = next_roster
        member.events.write(MemberTrained(at_s=time.time(), member=spec.member, peak_bytes=peak_resident_bytes()))


@contextmanager
def open_member(spec: WorkerSpec, store: ObjectStore, abort: Abort, kind: type[Member] = Member) -> Iterator[Member]:
    """A member that has learned its role and connected to its peers, which it leaves in the end.

    NotInvited is raised if it should have joined, and the others have gone on without it.
    """
    with ExitStack() as stack:
        fence = Fence(store, spec.roster)
        stop = StopListener(store, spec.roster, has_limits=spec.has_limits)
        member: Member | None = None

        def has_begun() -> bool:
            is_joiner = spec.joins_stage is not None  # which connects to members that train
            return is_joiner or (member is not None and member.has_begun)

        start = StartWatch(store, spec.roster, abort, has_begun)

        def look() -> None:
            start.look()
            stop.look()

        stack.enter_context(fence.watched(abort, lambda: end_process(EXIT_FAILED), look))
        events = stack.enter_context(EventWriter(store, spec.member, spec.roster, fence, reports_usage=True))
        stack.enter_context(shown_prints(spec.member, events.write))
        if spec.joins_stage is None:
            role, roster = kind.learn_role(spec, store, abort)
            peers = open_peers(spec, store, role.plan, roster, role.device, abort)
            member = kind(spec, store, abort, events, role, stop, roster, peers)
            yield stack.enter_context(member)
            return
        role, roster, loaded = _learn_as_joiner(spec, store, abort, kind)
        store_peers = None
        if role.plan.transport == "store":  # its heartbeats begin before anybody counts on this process
            store_peers = open_peers(spec, store, role.plan, roster, role.device, abort)
        joiner = stack.enter_context(kind(spec, store, abort, events, role, stop, roster, store_peers, loaded))
        joiner.warm_up()

        def connect(change: PlannedChange, roster: Roster, connecting: Abort) -> Peers:
            joiner.get_ready(roster, change)
            if store_peers is not None:
                return store_peers
            return open_peers(spec, store, role.plan, roster, role.device, abort, change, connecting)

        def disconnect(peers: Peers) -> None:
            if peers is not store_peers:
                peers.close(is_clean=True)

        hosts, peers = await_seat(spec, store, roster, connect, disconnect, abort)
        joiner.join(hosts, peers)
        yield joiner


def _learn_as_joiner(
    spec: WorkerSpec, store: ObjectStore, abort: Abort, kind: type[Member]
) -> tuple[Role, Roster, Loaded]:
    """The role of a process that joins, and its stage as the last checkpoint has it.

    Members prune checkpoints while they train, so the one that is read may vanish, and a newer one is there then.
    """
    num_left = _MAX_READS
    while True:
        try:
            role, roster = kind.learn_role(spec, store, abort)
            return role, roster, kind.load_stage(spec, store, role)
        except ObjectNotFound as error:
            num_left -= 1
            if num_left == 0:
                raise
            logger.warning("the last checkpoint was replaced while it was read: %s", error)
            abort.sleep(_CHECKPOINT_PAUSE_S)
