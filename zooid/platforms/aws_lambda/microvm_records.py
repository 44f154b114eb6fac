"""What is known of the MicroVM of a member, and where that is kept: a MicroVM has neither a name nor tags.

The record is written before the request that runs the MicroVM, and again when its id is known. So whoever finds the
first record alone repeats the request, and its client token makes sure that this runs no second MicroVM.
"""

from contextlib import suppress
from typing import Any, ClassVar

from zooid.core.errors import ObjectNotFound
from zooid.core.records import FileRecord, encode_record
from zooid.core.runs import keys
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record


class MicrovmRecord(FileRecord, frozen=True, kw_only=True, tag="microvm"):
    """The request that runs a MicroVM, and what it has made."""

    VERSION: ClassVar[int] = 1

    request: dict[str, Any]
    """The parameters of the request, its client token among them."""
    microvm_id: str = ""
    """The id of the MicroVM; empty as long as the request was not answered."""

    @property
    def image(self) -> str:
        return str(self.request["imageIdentifier"])


def find_record(store: ObjectStore, title: str) -> MicrovmRecord | None:
    """Read the record of a member; None if its MicroVM was never asked for, or is removed."""
    with suppress(ObjectNotFound):
        return read_record(store, keys.microvm(title), MicrovmRecord)
    return None


def keep_record(store: ObjectStore, title: str, record: MicrovmRecord) -> None:
    store.put(keys.microvm(title), encode_record(record))


def has_ended(store: ObjectStore, title: str) -> bool:
    """Whether the program in a MicroVM has said that the member's first program has ended."""
    with suppress(ObjectNotFound):
        store.get(keys.microvm_end(title))
        return True
    return False


def remove_records(store: ObjectStore, title: str) -> None:
    """Remove all that is kept for a member."""
    store.delete([keys.microvm_program(title), keys.microvm_end(title), keys.microvm(title)])
