"""The table of decoders: everything that reads bytes which a store, a socket, a file or a user hands over."""

from tests.fuzz.record_samples import records
from tests.fuzz.trials import Decoder
from tests.unit.test_events import ALL as ALL_EVENTS
from zooid.core.events import decode_events, encode_events
from zooid.core.records import FileRecord, decode_record, encode_record


def decoders() -> list[Decoder]:
    """All of them; whoever writes another one adds it here, with valid samples."""
    return [
        *(_record(record) for record in records()),
        Decoder("events", lambda data: decode_events(data, "events"), [encode_events(ALL_EVENTS)]),
    ]


def _record(record: FileRecord) -> Decoder:
    kind = type(record)
    name = str(kind.__struct_config__.tag)
    return Decoder(f"record {name}", lambda data: decode_record(data, kind, "file.json"), [encode_record(record)])
