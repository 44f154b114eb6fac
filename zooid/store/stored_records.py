"""Reading of records from a run's folder."""

from zooid.core.errors import ObjectNotFound
from zooid.core.plans.plan import Plan
from zooid.core.records import AnyFileRecord, decode_one_of, decode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberEnd
from zooid.core.runs.spec import RehearsalSpec, WorkerSpec
from zooid.store.store_protocol import ObjectStore


def read_record(store: ObjectStore, key: str, kind: type[AnyFileRecord]) -> AnyFileRecord:
    """Read a record of this kind; errors name the URL of the object."""
    return decode_record(bytes(store.get(key)), kind, f"{store.url}/{key}")


def read_plan(store: ObjectStore, number: int) -> Plan:
    """Read the plan of the roster with this number."""
    return read_record(store, keys.plan(number), Plan)


def find_end(store: ObjectStore, member: str, number: int) -> Exit | None:
    """Read how a member of this claim ended; None if that was not recorded."""
    try:
        return read_record(store, keys.end(member, number), MemberEnd).exit
    except ObjectNotFound:
        return None


def read_worker_spec(store: ObjectStore, member: str, number: int) -> WorkerSpec:
    """Read the spec of a member of this claim that trains or rehearses."""
    key = keys.spec(member, number)
    return decode_one_of(bytes(store.get(key)), (WorkerSpec, RehearsalSpec), f"{store.url}/{key}")
