"""Stores of runs, for providers that cannot tell by themselves which members are theirs, or whether they have ended."""

from collections.abc import Callable
from threading import Lock

from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import MemberHandle
from zooid.platforms.provider import Provider
from zooid.platforms.provider_platform import STORE, ProviderPlatform
from zooid.store import ObjectStore, open_store


class RunStores:
    """The stores of the runs whose members this process has started or found."""

    def __init__(self) -> None:
        self._stores: dict[str, ObjectStore] = {}
        self._lock = Lock()

    def add(self, run: str, store_url: str) -> ObjectStore:
        """Remember the store of a run, and return it."""
        with self._lock:
            if run not in self._stores:
                self._stores[run] = open_store(store_url)
            return self._stores[run]

    def find(self, run: str) -> ObjectStore | None:
        """Return the store of a run; None if nothing of this run was started or found."""
        return self._stores.get(run)


class PlatformWithStores(ProviderPlatform):
    """A platform whose providers know the stores of all runs, also of members that another process has started."""

    def __init__(
        self,
        name: str,
        open_provider: Callable[[str, RunStores], Provider],
        where_of: Callable[[Offer], str],
        offer_of: Callable[[str], Offer],
        look_s: float,
    ) -> None:
        stores = RunStores()
        super().__init__(name, lambda where: open_provider(where, stores), where_of, offer_of, look_s)
        self._stores = stores

    def watch(self, handle: MemberHandle, title: str) -> bool:
        is_watched = super().watch(handle, title)
        if is_watched:
            self._stores.add(handle.run, handle.place[STORE])
        return is_watched
