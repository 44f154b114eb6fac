"""Claims on the start of a member. The store grants one: to the process that runs it, or to one that cancels it."""

import secrets
import time

from zooid.core.errors import ObjectExists, ObjectNotFound
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.member_records import MemberStart
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_record


def claim_start(store: ObjectStore, member: str, roster: int) -> bool:
    """Claim the start of a member, and return whether the calling process is the one that runs it."""
    return _create(store, MemberStart(member=member, nonce=secrets.token_hex(8), at_s=time.time()), roster)


def cancel_start(store: ObjectStore, member: str, roster: int) -> None:
    """Keep a member from starting, however late its platform is; one that has started is not affected."""
    start = MemberStart(member=member, nonce=secrets.token_hex(8), is_cancelled=True, at_s=time.time())
    _create(store, start, roster)


def find_start(store: ObjectStore, member: str, roster: int) -> MemberStart | None:
    """Read the claim on the start of a member; None if nobody has claimed or cancelled it."""
    try:
        return read_record(store, keys.start(member, roster), MemberStart)
    except ObjectNotFound:
        return None


def _create(store: ObjectStore, start: MemberStart, roster: int) -> bool:
    try:
        store.create(keys.start(start.member, roster), encode_record(start))
    except ObjectExists:
        return False
    return True
