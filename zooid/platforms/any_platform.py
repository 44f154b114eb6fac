"""All platforms as one, for runs whose members are on several of them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.platforms.platform import Launch, Platform


class AnyPlatform:
    """Leaves every member to the platform of its offer. Platforms are made when they are first needed."""

    name = "local"
    """Name of the platform in handles of members on this machine, also if they rehearse a rented offer."""

    def __init__(
        self,
        make: Mapping[str, Callable[[], Platform]],
        platform_of: Callable[[str], str],
        follows: Callable[[MemberHandle], bool] = lambda handle: True,
    ) -> None:
        """`make` makes a platform, by its name; `platform_of` returns the name of an offer's platform.

        `follows` decides whether to connect to the place in a handle, which others may have written.
        """
        self._make = make
        self._platform_of = platform_of
        self._follows = follows
        self._made: dict[str, Platform] = {}
        self._listed: dict[tuple[str, str], tuple[float, Mapping[str, Exit | None]]] = {}
        """What a platform has listed of a run, and when, by the monotonic clock."""

    @property
    def look_s(self) -> float:
        return min((platform.look_s for platform in self._made.values()), default=0.05)

    def create(self, launches: Sequence[Launch]) -> None:
        by_platform: dict[str, list[Launch]] = {}
        for launch in launches:
            by_platform.setdefault(launch.platform, []).append(launch)
        platforms = [self.of(name) for name in by_platform]
        if len(platforms) == 1:
            platforms[0].create(launches)
        elif platforms:
            with ThreadPoolExecutor(len(platforms)) as threads:
                list(threads.map(lambda platform, own: platform.create(own), platforms, by_platform.values()))
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

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        left = {title for platform in self._made.values() for title in platform.delete(run, titles)}
        self._listed.clear()
        return left

    def release(self) -> None:
        for platform in self._made.values():
            platform.release()
        self._made.clear()

    def has_room(self, num_members: int, offer: str) -> bool:
        return self.of(self._platform_of(offer)).has_room(num_members, offer)

    def place(self, launch: Launch) -> dict[str, str]:
        return self.of(launch.platform).place(launch)

    def watch(self, handle: MemberHandle, title: str) -> bool:
        is_here = handle.platform in self._make and self._follows(handle)
        return is_here and self.of(handle.platform).watch(handle, title)

    def of(self, name: str) -> Platform:
        """Return the platform of this name."""
        if name not in self._made:
            self._made[name] = self._make[name]()
        return self._made[name]
