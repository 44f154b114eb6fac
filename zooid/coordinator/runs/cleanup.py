"""Removes what members of a run that ended badly have left in its store."""

import secrets
import time

from msgspec import structs

from zooid.coordinator.runs.lease import is_held, refuse_living
from zooid.coordinator.runs.leftovers import clear_earlier
from zooid.core.errors import InputError, ObjectExists
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import RunClaim
from zooid.store import ObjectStore, clear, open_store, sweep
from zooid.store.checkpoint_index import sweep_incomplete
from zooid.store.claims import last_claim
from zooid.store.fences import GRACE_S

_LOOK_AGAIN_S = 1.5
"""Members that are at work write something within this time; so do those that wait, for others do."""


def clean(store: str, *, force: bool = False) -> int:
    """Remove messages, meetings, probes and checkpoints that were never completed from a store's folder; plans, events
    and complete checkpoints stay.

    A folder in which a coordinator or members are at work is refused, unless `force` says that this is known. How many
    objects were removed.
    """
    objects = open_store(store)
    number, claim = _newest_claim(objects)
    was_killed = False
    if not force:
        was_killed = refuse_living(objects, number)
        _refuse_busy(objects)
    if was_killed and claim is not None:
        number = _fence_off(objects, claim, number)
    num_removed = sum(clear(objects, folder) for folder in (keys.COMM, keys.PROBES))
    if not force or not is_held(objects, number):  # whoever is at work may be about to complete one
        num_removed += sweep_incomplete(objects)
        if claim is not None:
            clear_earlier(objects, claim.run, number)
    sweep(objects, "", min_age_s=0.0 if force else 60.0)
    return num_removed


def _newest_claim(store: ObjectStore) -> tuple[int, RunClaim | None]:
    """The newest claim and its number; none in a folder through which process groups have met."""
    try:
        return last_claim(store)
    except InputError:
        return 0, None


def _refuse_busy(store: ObjectStore) -> None:
    """Refuse a folder in which messages come and go, or events: members over TCP, or one alone, exchange no objects."""
    before = store.list(keys.COMM), store.list(keys.EVENTS)
    if not any(before):
        return
    time.sleep(_LOOK_AGAIN_S)
    if (store.list(keys.COMM), store.list(keys.EVENTS)) != before:
        raise InputError(
            f"somebody is exchanging messages or telling of steps in {store.url} right now; end that run first, or use "
            "--force if you are sure, which makes it fail"
        )


def _fence_off(store: ObjectStore, claim: RunClaim, number: int) -> int:
    """End members that a killed coordinator has left behind and that have been silent: the number of the new claim."""
    own = structs.replace(claim, nonce=secrets.token_hex(8))
    try:
        store.create(keys.claim(number + 1), encode_record(own))
    except ObjectExists as error:
        raise InputError(f"somebody has just gone on with the run in {store.url}; wait for its end") from error
    time.sleep(GRACE_S)
    return number + 1
