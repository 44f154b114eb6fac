"""The rosters in a run's folder, which are written once, by a coordinator or a member, and never changed."""

from zooid.core.errors import ObjectNotFound
from zooid.core.runs import keys
from zooid.core.runs.roster import Roster
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_record


def read_roster(store: ObjectStore, number: int, change: int = 0) -> Roster:
    return read_record(store, keys.roster(number, change), Roster)


def find_roster(store: ObjectStore, number: int, change: int) -> Roster | None:
    """The roster, or None if it does not exist."""
    try:
        return read_roster(store, number, change)
    except ObjectNotFound:
        return None


def last_roster(store: ObjectStore, number: int) -> Roster | None:
    """The last roster of a claim, by which its members train; None if there is none."""
    changes = [change for claim, change in keys.rosters(store.list(keys.ROSTERS)) if claim == number]
    return find_roster(store, number, max(changes)) if changes else None


def last_number(store: ObjectStore) -> int:
    """The number of the last claim with a roster; 0 if there is none."""
    return max((number for number, _ in keys.rosters(store.list(keys.ROSTERS))), default=0)
