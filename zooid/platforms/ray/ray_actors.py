"""Members as detached actors of a Ray cluster, each with the resources of its offer.

They are not in a placement group. A group would start all members or none. But it would also keep the resources of
members that have left, and would request a node for each lost member, whose replacement is an actor outside the group.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.linked_members import LinkedMembers
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.ray.ray_cluster import RayCluster, open_driver

logger = logging.getLogger(__name__)


class RayPlatform:
    """Starts members as actors, through a driver that is a process of its own."""

    name = "ray"
    look_s = 0.1
    """The driver tells states when they change, and looking at them costs nothing."""

    def __init__(self, cluster_of: Callable[[str], RayCluster]) -> None:
        """`cluster_of` returns the cluster of an offer, by the offer's name."""
        self._cluster_of = cache(cluster_of)
        self._members: LinkedMembers[str] = LinkedMembers(open_driver)
        """Behind a driver for each cluster, by the address of the cluster."""

    def create(self, launches: Sequence[Launch]) -> None:
        by_run: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
        for launch in launches:
            cluster, ticket = self._cluster_of(launch.offer), launch.ticket
            self._members.settle(cluster.address, ticket.run, ticket.title)
            order = order_of(launch)
            order["ticket"]["uses_gpus"] = cluster.has_gpu  # a node may have GPUs that Ray has given to others
            member = {"order": order, "request": cluster.request}
            by_run.setdefault((ticket.run, cluster.address, cluster.python), {})[ticket.title] = member
        for (run, address, python), members in by_run.items():
            self._members.start(address, run, members, members=members, python=python)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return self._members.listed(run, _states)

    def delete(self, run: str, titles: Collection[str]) -> None:
        self._members.end(run, titles)

    def has_room(self, num_members: int, offer: str) -> bool:
        """Whether nodes are free for so many members, or the cluster grows for them by itself."""
        cluster = self._cluster_of(offer)
        try:
            link = self._members.links.get(cluster.address)
            num_free = cluster.num_fitting(link.ask("free"))
            num_all = sum(map(cluster.num_fitting, link.ask("nodes")))
        except Unreachable as error:
            logger.warning("free nodes are not known: %s", error)
            return False
        return num_members <= num_free + max(0, (cluster.max_members or 0) - num_all)

    def place(self, launch: Launch) -> dict[str, str]:
        return {"address": self._cluster_of(launch.offer).address}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        self._members.settle(handle.place["address"], handle.run, title)
        return True

    def release(self) -> None:
        """End the drivers; members live on."""
        self._members.links.close()


def _states(link: LineLink, run: str, titles: Collection[str]) -> dict[str, Exit | None]:
    """Return the states of a run's members, which the driver tells by itself once it knows the members."""
    if not set(titles) <= link.states(run).keys():
        link.ask("watch", run=run, titles=sorted(titles))  # the states come before the answer
    return {title: _exit_of(state) for title, state in link.states(run).items() if state != ""}


def _exit_of(state: Any) -> Exit | None:
    if isinstance(state, dict):
        return Exit(None, reason=f"is lost with its node: {state['lost']}")
    return not_started(state)
