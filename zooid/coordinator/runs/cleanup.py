"""Removal of objects that earlier or crashed parts of a run have left in its folder."""

import logging
import secrets
import time
from collections.abc import Sequence

from msgspec import structs

from zooid.coordinator.plans.known_places import in_words
from zooid.coordinator.runs.lease import is_held, reject_live_coordinator
from zooid.coordinator.runs.left_handles import clear_except_left
from zooid.coordinator.runs.left_members import (
    LeftMember,
    end_left_members,
    find_left_members,
    forget_ended,
    measurement_folders,
    reject_unnamed_places,
)
from zooid.core.errors import InputError, ObjectExists
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.spec import RunClaim
from zooid.store import ObjectStore, clear, open_store, sweep
from zooid.store.checkpoint_index import sweep_incomplete
from zooid.store.claims import last_claim
from zooid.store.fences import GRACE_S

logger = logging.getLogger(__name__)

_BUSY_POLL_S = 1.5
"""Members that are running write at least one object within this time."""


def clean(store: str, *, force: bool = False, trust_handles: bool = False) -> int:
    """End members that a killed coordinator has left, wherever they run, and remove what they exchanged.

    Returns the number of removed objects: messages, probes and incomplete checkpoints. Plans, events and complete
    checkpoints stay. A folder with a running coordinator or member is rejected, unless `force` is given.

    The handles in the folder say where members run. They are followed only to places that the user's own settings name,
    unless `trust_handles` says that nobody else may write to the folder.
    """
    folder = open_store(store)
    claim: RunClaim | None
    try:
        number, claim = last_claim(folder)
    except InputError:  # only process groups have used the folder
        number, claim = 0, None
    was_killed = is_alive = False
    try:
        was_killed = reject_live_coordinator(folder, number)
        if not force:
            _reject_busy(folder)
    except InputError:
        if not force:
            raise
        is_alive = True
    measurements = [] if is_alive else measurement_folders(folder)
    left = [] if is_alive else find_left_members(folder, measurements, with_handles=was_killed or force)
    if not (was_killed or force):
        _reject_left(folder, left)
        measurements = []  # somebody may measure there right now
    if not trust_handles:
        reject_unnamed_places(left, folder.url)
    end_left_members(left, trusts_handles=trust_handles)
    if claim is not None and (was_killed or left):
        number = _fence_off(folder, claim, number)
    if unended := forget_ended(left):
        logger.warning("members may still run: %s; clean again when they can be reached", _in_words(unended))
    num_removed = sum(clear(folder, prefix) for prefix in (keys.COMM, keys.PROBES))
    num_removed += sum(clear_except_left(folder, name) for name in measurements)
    if not force or not is_held(folder, number):  # a running member may be about to complete a checkpoint
        num_removed += sweep_incomplete(folder)
        if claim is not None:
            clear_earlier(folder, claim.run, number)
    sweep(folder, "", min_age_s=0.0 if force else 60.0)
    return num_removed


def clear_exchanged(store: ObjectStore, run: str, number: int) -> None:
    """Remove messages, answers, handles, ends, requests and limits of one claim's members, under all of its rosters."""
    for folder in (
        f"{keys.COMM}/{run}",
        keys.ANSWERS,
        keys.HANDLES,
        keys.ENDS,
        keys.DISMISSALS,
        keys.JOINING,
        keys.REQUESTS,
    ):
        _clear_claims(store, folder, range(number, number + 1))
    store.delete([keys.allowance(number)])


def clear_earlier(store: ObjectStore, run: str, number: int, claim: int | None = None) -> None:
    """Remove messages, failures, specs, handles, logs and requests of all rosters before this one, and earlier leases.

    `claim` is the number of the newest claim, if that is an adoption of this roster.
    """
    for folder in (
        f"{keys.COMM}/{run}",
        keys.FAILURES,
        keys.SPECS,  # together with the starts: a late process would otherwise start its member once more
        keys.STARTS,
        keys.ANSWERS,
        keys.HANDLES,
        keys.ENDS,
        keys.DISMISSALS,
        keys.LOGS,
        keys.JOINING,
        keys.REQUESTS,
    ):
        _clear_claims(store, folder, range(number))
    newest = number if claim is None else claim
    leases = [keys.lease(lease) for lease in keys.numbers(store.list(keys.LEASES)) if lease < newest]
    if leases:
        store.delete(leases)


def _clear_claims(store: ObjectStore, folder: str, claims: range) -> None:
    for name in store.list_folders(folder):
        roster = keys.roster_in(name)
        if roster is not None and roster[0] in claims:
            clear(store, f"{folder}/{name}")


def _reject_left(store: ObjectStore, left: Sequence[LeftMember]) -> None:
    if left:
        raise InputError(
            f"members may still run that were started from {store.url}: {_in_words(left)}; --force ends them"
        )


def _in_words(members: Sequence[LeftMember]) -> str:
    return ", ".join(in_words(member.handle) for member in members)


def _reject_busy(store: ObjectStore) -> None:
    """Reject a folder in which messages or events appear. Members on TCP, or a single one, exchange no messages."""
    before = store.list(keys.COMM), store.list(keys.EVENTS)
    if not any(before):
        return
    time.sleep(_BUSY_POLL_S)
    if (store.list(keys.COMM), store.list(keys.EVENTS)) != before:
        raise InputError(
            f"members are writing messages or events in {store.url} right now; end that run first, or use --force, "
            "which ends its members"
        )


def _fence_off(store: ObjectStore, claim: RunClaim, number: int) -> int:
    """End silent members of a killed coordinator with a new claim, and return its number."""
    new_claim = structs.replace(claim, nonce=secrets.token_hex(8))
    try:
        store.create(keys.claim(number + 1), encode_record(new_claim))
    except ObjectExists as error:
        raise InputError(f"another coordinator has just taken over the run in {store.url}; wait for its end") from error
    time.sleep(GRACE_S)
    return number + 1
