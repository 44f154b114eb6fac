"""Parts of platforms that tests make themselves."""

from collections.abc import Collection, Mapping, Sequence

from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.core.runs.ticket import Program, Ticket
from zooid.platforms import Launch
from zooid.platforms.provider import MemberOrder


class PretendedPlatform:
    """A platform with room for everybody. Its members are what `ends` says: None while one runs."""

    name = "local"
    look_s = 0.0

    def __init__(self) -> None:
        self.ends: dict[str, Exit | None] = {}
        """By title."""

    def create(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            self.ends[launch.ticket.title] = self.begin(launch)

    def begin(self, launch: Launch) -> Exit | None:
        """Begin a member, and tell how it ended at once; None if it runs."""
        return None

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return self.ends

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        for title in titles:
            self.ends.pop(title, None)
        return ()

    def release(self) -> None:
        pass

    def has_room(self, num_members: int, offer: str) -> bool:
        return True

    def place(self, launch: Launch) -> dict[str, str]:
        return {}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return False


class PretendedProvider:
    """A provider that starts nothing, and keeps what it is asked to start."""

    def __init__(self) -> None:
        self.orders: dict[str, MemberOrder] = {}
        """By title."""

    def check(self, orders: Collection[MemberOrder]) -> None:
        pass

    def start(self, order: MemberOrder) -> None:
        self.orders[order.title] = order

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        return dict.fromkeys(titles)

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        return ()

    def num_free(self, offer: Offer) -> int | None:
        return None

    def close(self) -> None:
        pass


def a_launch(member: str, program: Program = "worker", offer: str = "", *, trains: bool = True) -> Launch:
    """A launch for platforms that do not look at the spec."""
    ticket = Ticket(
        run="run", member=member, roster=0, program=program, spec_url="nothing", spec_digest="", num_threads=1
    )
    return Launch(ticket, offer, trains)
