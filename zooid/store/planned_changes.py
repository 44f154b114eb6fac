"""The planned changes of a roster, which are written once and never changed."""

from zooid.core.errors import ObjectExists, ObjectNotFound
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_plan, read_record


def read_change(store: ObjectStore, roster: Roster, attempt: int) -> PlannedChange:
    """Read a change that is planned for this roster, or the one by which it has guests."""
    base = roster.change - 1 if roster.guests else roster.change
    return read_record(store, keys.planned_change(roster.number, base, attempt), PlannedChange)


def find_newest_change(store: ObjectStore, roster: Roster, known: int = 0) -> PlannedChange | None:
    """Find the newest change that is planned for this roster; None if there is none after the attempt `known`."""
    newest = None
    while True:
        try:
            newest = read_change(store, roster, (known if newest is None else newest.attempt) + 1)
        except ObjectNotFound:
            return newest


def read_plan_of(store: ObjectStore, number: int, name: str) -> Plan:
    """Read the plan of this name, or the claim's own plan if the name is empty."""
    return read_record(store, keys.changed_plan(name), Plan) if name else read_plan(store, number)


def write_changed_plan(store: ObjectStore, kind: str, plan: Plan) -> str:
    """Write a plan that members will follow, and return its name: the kind, and the first free number."""
    number = 1
    while True:
        try:
            store.create(keys.changed_plan(f"{kind}-{number}"), encode_record(plan))
        except ObjectExists:
            number += 1
        else:
            return f"{kind}-{number}"
