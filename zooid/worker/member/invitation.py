"""How a process that was started to join waits for its seat."""

from zooid.core.abort import Abort
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Joining, Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.store import ObjectStore
from zooid.store.planned_changes import find_newest_change
from zooid.store.rosters import find_roster
from zooid.worker.peers import Peers


class NotInvited(Exception):
    """A process that was started to join has no seat; the message says why."""


_LOOK_S = 0.25
_LOCAL_LOOK_S = 0.02
"""Seconds between two looks, in a store that charges nothing."""


def await_change(spec: WorkerSpec, store: ObjectStore, roster: Roster, abort: Abort) -> tuple[PlannedChange, Roster]:
    """Say that this process is ready, and wait for a planned change with a seat for it.

    Returns the change and the roster that it replaces.
    """
    joining = Joining(member=spec.member, change=roster.change)
    store.put(keys.joining(spec.member, spec.roster), encode_record(joining))
    known = 0
    while True:
        while (newer := find_roster(store, roster.number, roster.change + 1)) is not None:
            roster, known = newer, 0
        change = None if roster.guests else find_newest_change(store, roster, known)
        if change is not None:
            known = change.attempt
            if spec.member in {seat.name for seat in change.seats}:
                return change, roster
        abort.sleep(_pause_s(store))


def await_roster(spec: WorkerSpec, store: ObjectStore, roster: Roster, peers: Peers, abort: Abort) -> Roster:
    """Wait for the roster whose guest this process is; NotInvited if the members have gone on without it."""
    while True:
        hosts = find_roster(store, roster.number, roster.change + 1)
        if hosts is not None and spec.member in {seat.name for seat in hosts.guests}:
            return hosts
        if hosts is not None or (peers.lost and set(peers.lost) >= roster.stages.keys()):
            peers.close(is_clean=True)
            raise NotInvited("the members have gone on without it, or have ended")
        abort.sleep(_pause_s(store))


def _pause_s(store: ObjectStore) -> float:
    return _LOCAL_LOOK_S if store.url.startswith("file://") else _LOOK_S
