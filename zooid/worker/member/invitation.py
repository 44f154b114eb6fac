"""How a process that was started to join waits for its seat."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from zooid.core.abort import Abort
from zooid.core.errors import CommError, StoreError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Joining, Roster
from zooid.core.runs.spec import WorkerSpec
from zooid.core.runs.store_rules import INVITATION_LOOK_S, SEAT_LOOK_S, look_s
from zooid.store import ObjectStore
from zooid.store.planned_changes import find_newest_change, read_change
from zooid.store.rosters import find_roster
from zooid.worker.peers import Peers


class NotInvited(Exception):
    """A process that was started to join has no seat; the message says why."""


_RECORD_LOOK_S = 2.0
"""Seconds between two looks whether the process is still wanted."""

Connect = Callable[[PlannedChange, Roster, Abort], Peers]
"""(a planned change, the roster that it replaces, a flag that ends the rendezvous) -> the peers of this process."""

Disconnect = Callable[[Peers], None]
"""Gives up the peers of a change that was not carried out."""


def await_seat(
    spec: WorkerSpec, store: ObjectStore, roster: Roster, connect: Connect, disconnect: Disconnect, abort: Abort
) -> tuple[Roster, Peers]:
    """Say that this process is ready, and wait for the roster whose guest it is.

    Returns that roster, and the peers. If the members go on without this process, such as with new shares, it waits for
    their next change. NotInvited is raised if nobody wants it any more.
    """
    joining = Joining(member=spec.member, change=roster.change)
    store.put(keys.joining(spec.member, spec.roster), encode_record(joining))
    while True:
        change, roster = _await_change(spec, store, roster, abort)
        with _while_current(spec.member, store, roster, change, abort) as current:
            try:
                peers = connect(change, roster, current)
            except CommError:
                if abort.is_set or not current.is_set:
                    raise
                continue  # the members are not at this rendezvous any more; there may be another
        try:
            hosts = _await_roster(spec, store, roster, peers, abort)
        except NotInvited:
            disconnect(peers)
            raise
        if hosts is not None:
            return hosts, peers
        disconnect(peers)


def _await_change(spec: WorkerSpec, store: ObjectStore, roster: Roster, abort: Abort) -> tuple[PlannedChange, Roster]:
    """Wait for a planned change with a seat for this process; return it, and the roster that it replaces."""
    known = 0
    began_s = looked_s = time.monotonic()
    while True:
        while (newer := find_roster(store, roster.number, roster.change + 1)) is not None:
            if spec.member in {seat.name for seat in newer.guests}:  # between two looks, the members have changed over
                return read_change(store, roster, newer.attempt), roster
            roster, known = newer, 0
        change = None if roster.guests else find_newest_change(store, roster, known)
        if change is not None:
            known = change.attempt
            if spec.member in {seat.name for seat in change.seats}:
                return change, roster
        if time.monotonic() - looked_s > _RECORD_LOOK_S:
            looked_s = time.monotonic()
            if keys.joining(spec.member, spec.roster) not in store.list(keys.joining_under(spec.roster)):
                raise NotInvited("the run has ended, or its coordinator was replaced")
        if time.monotonic() - began_s > spec.timeout_s:
            raise NotInvited(f"nobody has planned a seat for it within {spec.timeout_s:g} s")
        abort.sleep(look_s(store.url, INVITATION_LOOK_S))


@contextmanager
def _while_current(
    member: str, store: ObjectStore, roster: Roster, change: PlannedChange, abort: Abort
) -> Iterator[Abort]:
    """A flag that is set with `abort`, and when the members no longer prepare for this change."""
    current, ended = Abort(), threading.Event()

    def watch() -> None:
        while not ended.wait(look_s(store.url, INVITATION_LOOK_S)):
            with suppress(StoreError):
                hosts = find_roster(store, roster.number, roster.change + 1)
                is_left_out = hosts is not None and member not in {seat.name for seat in hosts.guests}
                if is_left_out or find_newest_change(store, roster, change.attempt) is not None:
                    current.set("the members no longer prepare for this change")
                    return

    abort.on_set(current.set)
    threading.Thread(target=watch, name="zooid-invitation", daemon=True).start()
    try:
        yield current
    finally:
        ended.set()
        abort.forget(current.set)


def _await_roster(spec: WorkerSpec, store: ObjectStore, roster: Roster, peers: Peers, abort: Abort) -> Roster | None:
    """Wait for the roster whose guest this process is; None if the members have gone on without it."""
    began_s = time.monotonic()
    while True:
        hosts = find_roster(store, roster.number, roster.change + 1)
        if hosts is not None:
            return hosts if spec.member in {seat.name for seat in hosts.guests} else None
        if set(peers.lost) >= roster.stages.keys():
            raise NotInvited("the members have ended")
        if time.monotonic() - began_s > spec.timeout_s:
            raise NotInvited(f"the members have not given it a seat within {spec.timeout_s:g} s")
        abort.sleep(look_s(store.url, SEAT_LOOK_S))
