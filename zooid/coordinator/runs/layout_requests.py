"""Requests to go on in another layout, which the coordinator of a run follows."""

from zooid.coordinator.runs.lease import is_held
from zooid.core.errors import InputError, ObjectExists
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.requests import LayoutRequest
from zooid.schedule.samples import samples_of
from zooid.store import ObjectStore, open_store
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.claims import last_claim, no_run
from zooid.store.rosters import last_number, last_roster
from zooid.store.stored_records import read_plan


def scale(url: str, num_replicas: int, num_stages: int) -> None:
    """Ask a run that trains to go on in another layout. It changes between two steps, and no step is lost."""
    store = open_store(url)
    number = last_number(store)
    roster = last_roster(store, number)
    if roster is None:
        raise no_run(store)
    plan = read_plan(store, number)
    if not plan.survives_losses:
        raise InputError(
            f"the run in {store.url} uses the transport {plan.transport}, over which members cannot join; train with "
            "the transport tcp or store"
        )
    if num_replicas > sum(roster.shares) and num_replicas > (num_grains := _max_grains(store)):
        raise InputError(
            f"{num_replicas} replicas are asked for, but a step has {num_grains} grains; give at most as many"
        )
    if not is_held(store, last_claim(store)[0]):
        raise InputError(
            f"the run in {store.url} has ended, or has no coordinator that could start members; `zooid resume "
            f"{store.url}` goes on with it, in any layout"
        )
    request = LayoutRequest(num_replicas=num_replicas, num_stages=num_stages)
    listed = [key for key in store.list(keys.requests_under(number)) if key.rpartition("/")[2][0].isdigit()]
    order = 1 + max(keys.numbers(listed), default=0)
    while True:
        try:
            store.create(keys.request(number, order), encode_record(request))
            return
        except ObjectExists:
            order += 1


def _max_grains(store: ObjectStore) -> int:
    """The number of grains in a step, which a larger batch may have raised since the run began."""
    return samples_of(read_manifest(store, last_step(store))).max_grains
