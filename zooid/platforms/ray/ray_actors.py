"""Members as detached actors of a Ray cluster, each with the resources of its offer.

They are not put into a placement group. It would start a crew all at once or not at all, but it also keeps its places
when members leave, and asks for a new node when one is lost, while replacements of the lost are actors of their own.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.entry.attendant import GRACE_S
from zooid.platforms.kept_links import KeptLinks
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.ray.ray_cluster import RayCluster, open_driver

logger = logging.getLogger(__name__)

_RECORD_S = 2.0
"""Seconds that a member has to record its end, after the time it has to end."""


class RayPlatform:
    """Starts members as actors, through a driver that is a process of its own."""

    name = "ray"
    look_s = 0.1
    """The driver tells states when they change, and looking at them costs nothing."""

    def __init__(self, cluster_of: Callable[[str], RayCluster]) -> None:
        """`cluster_of` returns the cluster of an offer, by the offer's name."""
        self._cluster_of = cluster_of
        self._clusters: dict[str, RayCluster] = {}
        self._links = KeptLinks(open_driver)
        """The link to the driver of each cluster, by the address of the cluster."""
        self._used: dict[str, dict[str, set[str]]] = {}
        """Addresses and titles of each run."""
        self._failed: dict[str, dict[str, Exit]] = {}

    def create(self, launches: Sequence[Launch]) -> None:
        by_run: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
        for launch in launches:
            cluster, ticket = self._cluster(launch.offer), launch.ticket
            self._used.setdefault(ticket.run, {}).setdefault(cluster.address, set()).add(ticket.title)
            order = order_of(launch)
            order["ticket"]["uses_gpus"] = cluster.has_gpu  # a node may have GPUs that Ray has given to others
            member = {"order": order, "request": cluster.request}
            by_run.setdefault((ticket.run, cluster.address, cluster.python), {})[ticket.title] = member
        for (run, address, python), members in by_run.items():
            try:
                self._links.get(address).ask("start", run=run, members=members, python=python)
            except Unreachable as error:
                reason = f"could not be started: {error}"
                self._failed.setdefault(run, {}).update(dict.fromkeys(members, Exit(None, reason=reason)))

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed: dict[str, Exit | None] = {}
        for address, titles in self._used.get(run, {}).items():
            try:
                states = self._states(self._links.get_now(address), run, titles)
                listed |= {title: _exit_of(state) for title, state in states.items() if state != ""}
            except Unreachable as error:
                listed |= dict.fromkeys(titles, self._links.lost(address, error))
        return {**listed, **self._failed.get(run, {})}

    def delete(self, run: str, titles: Collection[str]) -> None:
        """End members. What cannot be reached ends by itself, when it finds that nobody waits for it any more."""
        for address, known in self._used.get(run, {}).items():
            wanted = sorted(known & set(titles))
            if not wanted:
                continue
            try:
                self._links.get(address).ask("end", run=run, titles=wanted, grace_s=GRACE_S + _RECORD_S)
            except Unreachable as error:
                logger.warning("members could not be ended: %s", error)

    def has_room(self, num_members: int, offer: str) -> bool:
        """Whether nodes are free for so many members, or the cluster grows for them by itself."""
        cluster = self._cluster(offer)
        try:
            link = self._links.get(cluster.address)
            num_free = cluster.num_fitting(link.ask("free"))
            num_all = sum(map(cluster.num_fitting, link.ask("nodes")))
        except Unreachable as error:
            logger.warning("free nodes are not known: %s", error)
            return False
        return num_members <= num_free + max(0, (cluster.max_members or 0) - num_all)

    def place(self, launch: Launch) -> dict[str, str]:
        return {"address": self._cluster(launch.offer).address}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        self._used.setdefault(handle.run, {}).setdefault(handle.place["address"], set()).add(title)
        return True

    def release(self) -> None:
        """End the drivers; members live on."""
        self._links.close()

    def _cluster(self, offer: str) -> RayCluster:
        if offer not in self._clusters:
            self._clusters[offer] = self._cluster_of(offer)
        return self._clusters[offer]

    @staticmethod
    def _states(link: LineLink, run: str, titles: Collection[str]) -> Mapping[str, Any]:
        """Return the states of a run's members, which the driver tells by itself once it knows the members."""
        if not set(titles) <= link.states(run).keys():
            link.ask("watch", run=run, titles=sorted(titles))  # the states come before the answer
        return link.states(run)


def _exit_of(state: Any) -> Exit | None:
    if isinstance(state, dict):
        return Exit(None, reason=f"is lost with its node: {state['lost']}")
    return not_started(state)
