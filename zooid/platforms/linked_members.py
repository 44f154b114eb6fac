"""Members that are reached through links: the place of each, and how they are started, listed and ended."""

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from zooid.core.runs.member_records import Exit
from zooid.entry.attendant import GRACE_S
from zooid.entry.machine_folder import STARTER
from zooid.platforms.kept_links import KeptLinks
from zooid.platforms.line_link import LineLink, Unreachable

logger = logging.getLogger(__name__)

_RECORD_S = 2.0
"""Seconds that a member has to record its end, after the time it has to end."""

Place = TypeVar("Place", bound=Hashable)
StatesOf = Callable[[LineLink, str, Collection[str]], Mapping[str, Exit | None]]
"""Returns the states of a run's members behind a link, by title, given the titles that are known there."""


class LinkedMembers(Generic[Place]):
    """The members of all runs, by place. There is one link to each place."""

    def __init__(self, open_link: Callable[[Place], LineLink]) -> None:
        self.links = KeptLinks(open_link)
        self._titles: dict[str, dict[Place, set[str]]] = {}
        """Titles of each run, by place."""
        self._failed: dict[str, dict[str, Exit]] = {}
        """Members that could not be started, by run and title."""

    def settle(self, place: Place, run: str, title: str) -> None:
        """Take note of the place of a member."""
        self._titles.setdefault(run, {}).setdefault(place, set()).add(title)

    def place_of(self, run: str, title: str) -> Place | None:
        """Return the place of a member; None if it is not known."""
        places = self._titles.get(run, {})
        return next((place for place, titles in places.items() if title in titles), None)

    def at(self, place: Place) -> Iterator[tuple[str, str]]:
        """Yield runs and titles of all members of a place that were not seen to end or to fail."""
        try:
            link = self.links.get_now(place)
        except Unreachable:
            link = None
        for run, places in self._titles.items():
            ended = set() if link is None else {title for title, state in link.states(run).items() if state is not None}
            for title in places.get(place, set()) - ended - self._failed.get(run, {}).keys():
                yield run, title

    def start(self, place: Place, run: str, titles: Collection[str], **request: Any) -> None:
        """Ask for members to be started. If the place cannot be reached, they are listed with the reason."""
        try:
            self.links.get(place).ask("start", run=run, **request)
        except Unreachable as error:
            reason = f"could not be started: {error}"
            self._failed.setdefault(run, {}).update(dict.fromkeys(titles, Exit(None, reason=reason)))

    def listed(self, run: str, states_of: StatesOf) -> dict[str, Exit | None]:
        """List the members of a run."""
        found: dict[str, Exit | None] = {}
        failed = self._failed.get(run, {})
        for place, titles in self._titles.get(run, {}).items():
            try:
                told = states_of(self.links.get_now(place), run, titles)
            except Unreachable as error:
                found |= dict.fromkeys(titles, self.links.lost(place, error))
                continue
            found |= told
            for title in [title for title, state in told.items() if state is None]:
                failed.pop(title, None)  # the link broke when the request had already arrived
        return {**found, **failed}

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        """End members, and return the titles of those that could not be ended."""
        left: set[str] = set()
        wanted = {place: sorted(known & set(titles)) for place, known in self._titles.get(run, {}).items()}

        def end_at(place: Place) -> None:
            try:
                answer = self.links.get(place).ask("end", run=run, titles=wanted[place], grace_s=GRACE_S + _RECORD_S)
                left.update(answer or ())
            except Unreachable as error:
                logger.warning("%s could not be ended: %s", ", ".join(wanted[place]), error)
                left.update(wanted[place])

        self.links.together(end_at, [place for place, known in wanted.items() if known])
        return {title.removeprefix(STARTER) for title in left}
