"""Looks at members one by one, because Azure's lists do not say how containers are."""

import time
from collections.abc import Callable, Collection
from threading import Lock

from azure.core.exceptions import ResourceNotFoundError

from zooid.core.runs.member_records import Exit
from zooid.platforms.azure_container.resource_manager import each

_MAX_LOOKS = 40
"""Members that are asked about at a time. Azure answers 25 reads a second for each subscription, and more at first."""


class MemberLooks:
    """Remembers when each member was last asked about, so that all of a large run have their turn."""

    def __init__(self, look: Callable[[str, str], Exit | None], what: str) -> None:
        """`look` asks about a member by run and title, and raises ResourceNotFoundError if Azure has none.

        `what` names the resource of a member.
        """
        self._look = look
        self._what = what
        self._known: dict[tuple[str, str], tuple[float, Exit | None]] = {}
        """When a member that Azure has listed was asked about, and how it was."""
        self._lock = Lock()

    def states(self, run: str, titles: Collection[str]) -> dict[str, Exit | None]:
        """Return how members are, as far as Azure has ever known them."""

        def asked_s(title: str) -> float:
            return self._known.get((run, title), (0.0, None))[0]

        with self._lock:
            asked = sorted(titles, key=asked_s)[:_MAX_LOOKS]
        each(asked, lambda title: self._ask(run, title))
        with self._lock:
            return {title: self._known[run, title][1] for title in titles if (run, title) in self._known}

    def _ask(self, run: str, title: str) -> None:
        try:
            state = self._look(run, title)
        except ResourceNotFoundError:
            if (run, title) not in self._known:
                return  # its start may be under way
            state = Exit(None, reason=f"was lost: its {self._what} does not exist any more")
        with self._lock:
            self._known[run, title] = (time.monotonic(), state)

    def forget(self, run: str, titles: Collection[str]) -> None:
        """Forget members that were removed."""
        with self._lock:
            for title in titles:
                self._known.pop((run, title), None)
