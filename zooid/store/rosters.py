"""The rosters in a run's folder: written once, by a coordinator or by members, and never changed."""

from zooid.core import keys
from zooid.core.errors import ObjectNotFound
from zooid.core.records import decode_record
from zooid.core.roster import Roster
from zooid.store.protocol import ObjectStore


def read_roster(store: ObjectStore, number: int, change: int = 0) -> Roster:
    key = keys.roster(number, change)
    return decode_record(bytes(store.get(key)), Roster, f"{store.url}/{key}")


def find_roster(store: ObjectStore, number: int, change: int) -> Roster | None:
    """The roster, or None if nobody has written it."""
    try:
        return read_roster(store, number, change)
    except ObjectNotFound:
        return None


def last_number(store: ObjectStore) -> int:
    """The number of the last claim that has a roster; 0 if none has."""
    return max((number for number, _ in keys.rosters(store.list(keys.ROSTERS))), default=0)
