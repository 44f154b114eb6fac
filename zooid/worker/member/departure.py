"""A member that will be ended while no coordinator runs plans by itself that its replica leaves."""

import logging
import threading
import time

from zooid.core.errors import ObjectExists, ObjectNotFound, ScheduleError, StoreError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.requests import Notice
from zooid.core.runs.roster import Roster
from zooid.schedule.planned_rosters import planned_change, without_replica_of
from zooid.store import ObjectStore
from zooid.store.planned_changes import find_newest_change
from zooid.store.rosters import last_roster

logger = logging.getLogger(__name__)

_SILENCE_S = 10.0
"""Time without a heartbeat after which the coordinator counts as dead."""
_LATEST_FRACTION = 0.5
"""Fraction of the time that is left, after which a silent coordinator is not waited for any longer."""
_LOOK_S = 1.0


def plan_departure(notice: Notice, number: int, store: ObjectStore, ended: threading.Event) -> None:
    """Plan that the member leaves, if its coordinator is dead. `number` is that of the claim.

    A coordinator that lives starts a successor, or plans the same. This returns when the member has ended.
    """
    silence_s = _SILENCE_S if notice.left_s is None else min(_SILENCE_S, _LATEST_FRACTION * notice.left_s)
    heartbeat: bytes | None = b""
    changed_s = time.monotonic()
    while not ended.wait(min(_LOOK_S, silence_s)):
        try:
            if (newest := _heartbeat(store)) != heartbeat:
                heartbeat, changed_s = newest, time.monotonic()
            elif time.monotonic() - changed_s >= silence_s and _has_planned(notice, number, store):
                return
        except ScheduleError as error:
            logger.warning("no coordinator can start a successor, and %s", error)
            return
        except StoreError as error:
            logger.warning("it is not known whether a coordinator heeds the notice: %s", error)


def _heartbeat(store: ObjectStore) -> bytes | None:
    """The last heartbeat of the coordinator; None if there is none."""
    claim = max(keys.numbers(store.list(keys.CLAIMS)), default=0)
    try:
        return bytes(store.get(keys.lease(claim)))
    except ObjectNotFound:
        return None


def _has_planned(notice: Notice, number: int, store: ObjectStore) -> bool:
    """Plan a roster without the member, unless it has no seat; False if that was not possible at this moment."""
    roster = last_roster(store, number)
    if roster is None or notice.member not in roster.stages:
        return True
    if roster.guests:
        return False
    newest = find_newest_change(store, roster)
    if newest is not None and notice.member not in {seat.name for seat in newest.seats}:
        return True
    return _is_written(notice, roster, store, 1 if newest is None else newest.attempt + 1)


def _is_written(notice: Notice, roster: Roster, store: ObjectStore, attempt: int) -> bool:
    cause = f"{notice.member} will be ended, says {notice.source}"
    change = planned_change(roster, without_replica_of(roster, notice.member), cause, attempt)
    try:
        store.create(keys.planned_change(change.number, change.change, change.attempt), encode_record(change))
    except ObjectExists:
        return False
    return True
