"""Members as detached actors of a Ray cluster, each with the resources of its offer.

They are not in a placement group. A group would start all members or none. But it would also keep the resources of
members that have left, and would request a node for each lost member, whose replacement is an actor outside the group.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.linked_members import LinkedMembers
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.ray.ray_cluster import RayCluster, hopelessness, lack_of_room, open_driver

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
            # a node may have GPUs that Ray has given to others
            order["ticket"]["gpu"] = "assigned" if cluster.has_gpu else "none"
            member = {
                "order": order,
                "request": cluster.request,
                "needs": cluster.resources_of_nodes,
                "max_members": cluster.max_members,
            }
            by_run.setdefault((ticket.run, cluster.address, cluster.python), {})[ticket.title] = member
        for (run, address, python), members in by_run.items():
            self._members.start(address, run, members, members=members, python=python)
        for cluster in {self._cluster_of(launch.offer) for launch in launches}:
            self._warn_of_growth(cluster)

    def _warn_of_growth(self, cluster: RayCluster) -> None:
        """Say what members wait for if the cluster must start a node for them, since that may never happen."""
        name = f"Ray at {cluster.address}"
        with suppress(Unreachable):  # the members are listed as lost
            nodes = self._members.links.get(cluster.address).ask("nodes")
            why = lack_of_room(name, nodes, cluster.resources_of_nodes)
            if why and not hopelessness(name, nodes, cluster.resources_of_nodes, cluster.max_members):
                logger.warning("members wait until the cluster starts another node: %s", why)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return self._members.listed(run, _states)

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        return self._members.end(run, titles)

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
        if handle.place.keys() != {"address"}:
            return False
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
