"""The operations that zooid needs of a platform: create members, list them, delete them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.core.runs.ticket import Ticket


@dataclass(frozen=True)
class Launch:
    """A member to start."""

    ticket: Ticket
    offer: str = ""
    """Name of the offer on which the member runs."""
    trains: bool = True
    """Whether the member trains; otherwise it only prepares, checks or plans a run."""
    platform: str = "local"
    """Name of the platform of the offer."""
    package: str = ""
    """Digest of the archive of zooid in the run's folder; empty for a member of this machine."""

    @property
    def member(self) -> str:
        return self.ticket.member


def not_started(words: str | None) -> Exit | None:
    """Return the exit of a member whose start failed with this output; None, for no output, if it has not ended."""
    if words is None:
        return None
    return Exit(None, reason=f"could not be started: {words.strip().splitlines()[-1].strip()}", output=words)


class Platform(Protocol):
    """Starts members through `zooid.entry`, which records in the store how they end.

    Members have titles, which are unique within a run. Any process can list and delete the members of a run, whoever
    has created them.
    """

    @property
    def name(self) -> str:
        """The name of the platform in offers and handles."""

    @property
    def look_s(self) -> float:
        """Seconds between two calls of `members`."""

    def create(self, launches: Sequence[Launch]) -> None:
        """Start members, all at once. A title that already runs is not started again.

        A member that cannot be started is listed with the reason. Raises InputError, before any is started, for
        launches that can never work here.
        """

    def members(self, run: str) -> Mapping[str, Exit | None]:
        """List the members of a run by title: None while a member exists, or how it ended if the platform knows.

        A member that is gone may be missing.
        """

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        """End members, by force if necessary, and return when they are gone. They may be gone already.

        Returns the titles that could not be ended, normally none.
        """

    def release(self) -> None:
        """Close this process's connections to members, which keep running."""

    def has_room(self, num_members: int, offer: str) -> bool:
        """Whether so many more members can be started now on the offer of this name."""

    def place(self, launch: Launch) -> dict[str, str]:
        """Choose the place of a member that will be created, and return it for its handle, for `watch`."""

    def watch(self, handle: MemberHandle, title: str) -> bool:
        """Let `members` list a member that another process has created; False if that is not possible from here."""
