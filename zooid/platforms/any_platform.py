"""All platforms as one, for runs whose members are on several of them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.platforms.platform import Launch, Platform


class AnyPlatform:
    """Leaves every member to the platform of its offer. Platforms are made when they are first needed."""

    name = "local"
    """Name of the platform in handles of members on this machine, also if they rehearse a rented offer."""

    def __init__(self, make: Mapping[str, Callable[[], Platform]], platform_of: Callable[[str], str]) -> None:
        """`make` makes a platform, by its name; `platform_of` returns the name of an offer's platform."""
        self._make = make
        self._platform_of = platform_of
        self._made: dict[str, Platform] = {}
        self._listed: dict[tuple[str, str], tuple[float, Mapping[str, Exit | None]]] = {}
        """What a platform has listed of a run, and when, by the monotonic clock."""

    @property
    def look_s(self) -> float:
        return min((platform.look_s for platform in self._made.values()), default=0.05)

    def create(self, launches: Sequence[Launch]) -> None:
        for name in {launch.platform for launch in launches}:
            self.of(name).create([launch for launch in launches if launch.platform == name])
        self._listed.clear()  # it lacks the new members

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed: dict[str, Exit | None] = {}
        for name, platform in self._made.items():
            at_s, known = self._listed.get((name, run), (float("-inf"), {}))
            if time.monotonic() - at_s >= platform.look_s:
                known = platform.members(run)
                self._listed[name, run] = (time.monotonic(), known)
            listed |= known
        return listed

    def delete(self, run: str, titles: Collection[str]) -> None:
        for platform in self._made.values():
            platform.delete(run, titles)
        self._listed.clear()

    def release(self) -> None:
        for platform in self._made.values():
            platform.release()
        self._made.clear()

    def has_room(self, num_members: int, offer: str) -> bool:
        return self.of(self._platform_of(offer)).has_room(num_members, offer)

    def place(self, launch: Launch) -> dict[str, str]:
        return self.of(launch.platform).place(launch)

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return handle.platform in self._make and self.of(handle.platform).watch(handle, title)

    def of(self, name: str) -> Platform:
        """Return the platform of this name."""
        if name not in self._made:
            self._made[name] = self._make[name]()
        return self._made[name]
