"""Requests to go on in another layout: how they are made, and how a coordinator finds them."""

import logging
import time
from dataclasses import dataclass

from zooid.core.errors import InputError, ObjectExists, ObjectNotFound, RecordError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.requests import LayoutRequest
from zooid.store import ObjectStore, open_store
from zooid.store.claims import no_run
from zooid.store.rosters import last_number, last_roster
from zooid.store.stored_records import read_plan, read_record

logger = logging.getLogger(__name__)

_LOOK_S = 2.0
_LOCAL_LOOK_S = 0.1
"""Seconds between two looks, in a store that charges nothing."""


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
    if num_replicas > sum(roster.shares):
        raise InputError(
            f"{num_replicas} replicas are asked for, but a step has {sum(roster.shares)} grains; give at most as many"
        )
    request = LayoutRequest(num_replicas=num_replicas, num_stages=num_stages)
    order = len(store.list(keys.requests_under(number))) + 1
    while True:
        try:
            store.create(keys.request(number, order), encode_record(request))
            return
        except ObjectExists:
            order += 1


@dataclass
class LayoutRequests:
    """The requests to one claim's members, as its coordinator reads them."""

    store: ObjectStore
    number: int
    _num_read: int = 0
    _next_look_s: float = 0.0

    def read_new(self) -> list[LayoutRequest]:
        """Return new requests, unless the last look was a moment ago."""
        if time.monotonic() < self._next_look_s:
            return []
        self._next_look_s = time.monotonic() + (_LOCAL_LOOK_S if self.store.url.startswith("file://") else _LOOK_S)
        new = []
        while True:
            try:
                new.append(read_record(self.store, keys.request(self.number, self._num_read + 1), LayoutRequest))
            except ObjectNotFound:
                return new
            except RecordError as error:
                logger.warning("a request cannot be read: %s", error)
            self._num_read += 1
