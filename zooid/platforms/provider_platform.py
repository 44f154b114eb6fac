"""Members with a provider: they are started through its requests, and end by request through their store.

Providers do not tell a member's program apart from its container. So a member is asked in its store to end, records
how it ended, and only then is its container removed.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from zooid.core.errors import InputError, RecordError, StoreError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.entry.attendant import GRACE_S
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch
from zooid.platforms.provider import MemberOrder, Provider
from zooid.store import ObjectStore, open_store
from zooid.store.dismissals import LOOK_S, dismiss
from zooid.store.member_starts import cancel_start, find_start
from zooid.store.stored_records import find_end

logger = logging.getLogger(__name__)

_MAX_REQUESTS = 16
"""Number of members that are started at the same time."""
_POLL_S = 0.25
_RECORD_S = 3.0
"""Seconds that a member has to record its end, after the time it has to end."""
_UNLISTED_S = 60.0
"""Seconds after a start in which a provider may not list the member yet."""
WHERE, STORE = "where", "store"
"""Fields of the place of a member: the account and region, and the folder of its run."""


@dataclass
class _Hosted:
    """A member with a provider."""

    where: str
    store_url: str
    member: str
    roster: int
    started_s: float
    """When it was started or first watched, by the monotonic clock."""
    exit: Exit | None = None
    """How it ended, if the provider or a failed start has said so."""


class ProviderPlatform:
    """Starts, lists and ends members through a provider for each account and region."""

    def __init__(
        self,
        name: str,
        open_provider: Callable[[str], Provider],
        where_of: Callable[[Offer], str],
        offer_of: Callable[[str], Offer],
        look_s: float = 2.0,
    ) -> None:
        """`where_of` names the account and region of an offer, and `open_provider` opens the provider there.

        `offer_of` returns an offer by its name. Members are listed every `look_s` seconds.
        """
        self.name = name
        self.look_s = look_s
        self._open_provider = open_provider
        self._where_of = where_of
        self._offer_of = cache(offer_of)
        self._open_store = cache(open_store)
        self._providers: dict[str, Provider] = {}
        self._members: dict[str, dict[str, _Hosted]] = {}
        """All members that this object has started or watched: for each run, by title."""
        self._is_silent = False

    def create(self, launches: Sequence[Launch]) -> None:
        orders = {launch.ticket.title: self._order(launch) for launch in launches}
        wheres = {title: self._where_of(order.offer) for title, order in orders.items()}
        for where in set(wheres.values()):
            self._provider(where).check([order for title, order in orders.items() if wheres[title] == where])
        now_s = time.monotonic()
        for launch in launches:
            ticket = launch.ticket
            of_run = self._members.setdefault(ticket.run, {})
            store_url = keys.split_spec_url(ticket.spec_url)[0]
            hosted = _Hosted(wheres[ticket.title], store_url, ticket.member, ticket.roster, now_s)
            of_run.setdefault(ticket.title, hosted)

        def start(order: MemberOrder) -> None:
            hosted = self._members[order.run][order.title]
            try:
                self._provider(hosted.where).start(order)
            except ZooidError as error:
                hosted.exit = Exit(None, ran_s=0.0, reason=f"could not be started: {error}")
                with suppress(ZooidError):  # the provider may have begun although it did not answer
                    store = self._open_store(hosted.store_url)
                    cancel_start(store, hosted.member, hosted.roster)
                    dismiss(store, hosted.member, hosted.roster)

        if orders:
            with ThreadPoolExecutor(min(len(orders), _MAX_REQUESTS)) as threads:
                list(threads.map(start, orders.values()))

    def _order(self, launch: Launch) -> MemberOrder:
        offer, ticket = self._offer_of(launch.offer), launch.ticket
        order = order_of(launch)
        order["ticket"] |= {
            "gpu": "assigned" if offer.num_gpus and ticket.uses_gpus else "none",
            "given_bytes": offer.memory_bytes,
            "ends_by_request": True,
        }
        return MemberOrder(ticket.run, ticket.title, offer, order, ticket.lifetime_s)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        self._look(run)
        return {title: hosted.exit for title, hosted in self._members.get(run, {}).items()}

    def _look(self, run: str) -> None:
        """Ask the providers of a run's living members how they are."""
        living: dict[str, set[str]] = {}
        for title, hosted in self._members.get(run, {}).items():
            if hosted.exit is None:
                living.setdefault(hosted.where, set()).add(title)
        for where, titles in living.items():
            try:
                states = self._provider(where).states(run, titles)
                self._is_silent = False
            except ZooidError as error:
                if not self._is_silent:
                    logger.warning("the provider did not say which members run; they may still cost money: %s", error)
                self._is_silent = True
                continue
            for title in titles:
                self._note(self._members[run][title], title in states, states.get(title))

    def _note(self, hosted: _Hosted, is_listed: bool, state: Exit | None) -> None:
        if is_listed:
            hosted.exit = state
        elif time.monotonic() - hosted.started_s >= _UNLISTED_S:
            hosted.exit = Exit(None)

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        known = {title: hosted for title, hosted in self._members.get(run, {}).items() if title in titles}
        self._ask_to_end([hosted for hosted in known.values() if hosted.exit is None])
        self._look(run)  # how they ended, and for how long they are billed, is forgotten with what is removed
        left: set[str] = set()
        by_provider: dict[str, set[str]] = {}
        for title, hosted in known.items():
            by_provider.setdefault(hosted.where, set()).add(title)
        for where, own in by_provider.items():
            try:
                unended = set(self._provider(where).end(run, own))
            except ZooidError as error:
                unended = {title for title in own if known[title].exit is None}
                logger.warning("%s could not be ended: %s", ", ".join(sorted(unended)) or "members", error)
            ended = {title for title in own - unended if known[title].exit is None}
            settled = self._states_after_the_end(where, run, ended)
            for title in ended:
                known[title].exit = settled.get(title) or Exit(None)
            left |= unended
        return left

    def _states_after_the_end(self, where: str, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        """Ask how members ended that ran until their end was asked for, such as for how long machines are billed."""
        with suppress(ZooidError):
            return self._provider(where).states(run, titles) if titles else {}
        return {}

    def _ask_to_end(self, members: Sequence[_Hosted]) -> None:
        """Ask members to end, and wait a while until those that have begun have recorded it.

        One that has not begun finds the request as soon as it does, if the provider cannot keep it from beginning.
        """
        begun = []
        for hosted in members:
            store = self._open_store(hosted.store_url)
            with suppress(StoreError, RecordError):  # whoever cannot be asked is ended by force
                start = find_start(store, hosted.member, hosted.roster)
                if start is None or not start.is_cancelled:
                    dismiss(store, hosted.member, hosted.roster)
                    begun += [hosted] if start is not None else []
        deadline_s = time.monotonic() + LOOK_S + GRACE_S + _RECORD_S
        while begun and time.monotonic() < deadline_s:
            begun = [hosted for hosted in begun if not _has_recorded(self._open_store(hosted.store_url), hosted)]
            time.sleep(_POLL_S)

    def release(self) -> None:
        for provider in self._providers.values():
            provider.close()
        self._providers.clear()

    def has_room(self, num_members: int, offer: str) -> bool:
        resolved = self._offer_of(offer)
        try:
            num_free = self._provider(self._where_of(resolved)).num_free(resolved)
        except ZooidError as error:
            logger.warning("free room for %s is not known: %s", offer, error)
            return False
        return num_free is None or num_members <= num_free

    def place(self, launch: Launch) -> dict[str, str]:
        store_url = keys.split_spec_url(launch.ticket.spec_url)[0]
        return {WHERE: self._where_of(self._offer_of(launch.offer)), STORE: store_url}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        if handle.place.keys() != {WHERE, STORE}:
            return False
        label = keys.roster_in(title.partition(".")[0])
        try:
            self._provider(handle.place[WHERE])
        except InputError as error:
            logger.warning("%s is not looked for: %s", handle.member, error)
            return False
        if label is None:
            return False
        hosted = _Hosted(handle.place[WHERE], handle.place[STORE], handle.member, label[0], time.monotonic())
        self._members.setdefault(handle.run, {}).setdefault(title, hosted)
        return True

    def _provider(self, where: str) -> Provider:
        if where not in self._providers:
            self._providers[where] = self._open_provider(where)
        return self._providers[where]


def _has_recorded(store: ObjectStore, hosted: _Hosted) -> bool:
    with suppress(StoreError, RecordError):
        return find_end(store, hosted.member, hosted.roster) is not None
    return True
