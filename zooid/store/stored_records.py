"""Reading of records from a run's folder."""

from zooid.core.plans.plan import Plan
from zooid.core.records import AnyFileRecord, decode_record
from zooid.core.runs import keys
from zooid.store.store_protocol import ObjectStore


def read_record(store: ObjectStore, key: str, kind: type[AnyFileRecord]) -> AnyFileRecord:
    """Read a record of this kind; errors name the URL of the object."""
    return decode_record(bytes(store.get(key)), kind, f"{store.url}/{key}")


def read_plan(store: ObjectStore, number: int) -> Plan:
    """Read the plan of the roster with this number."""
    return read_record(store, keys.plan(number), Plan)
