"""Members on machines that ssh reaches: the user's own, with the user's own configuration."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from zooid.core.errors import InputError
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.entry.attendant import GRACE_S
from zooid.platforms.kept_links import KeptLinks
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.programs import bootstrap_program
from zooid.platforms.ssh.agent_link import SshMachine, SshPool, open_agent

logger = logging.getLogger(__name__)

_RECORD_S = 2.0
"""Seconds that a member has to record its end, after the time it has to end."""


class SshPlatform:
    """Starts members on machines, each through an agent at the other end of one ssh connection."""

    name = "ssh"
    look_s = 0.1
    """States are pushed by the agents, and looking at them costs nothing."""

    def __init__(self, pool_of: Callable[[str], SshPool]) -> None:
        """`pool_of` returns the machines of an offer, by the offer's name."""
        self._pool_of = cache(pool_of)
        self._links = KeptLinks(open_agent)
        self._used: dict[str, dict[SshMachine, set[str]]] = {}
        """Machines and titles of each run."""
        self._tenants: dict[SshMachine, set[tuple[str, str]]] = {}
        """Runs and titles of members that take room on each machine, also of those that have ended."""
        self._failed: dict[str, dict[str, Exit]] = {}

    def create(self, launches: Sequence[Launch]) -> None:
        by_machine: dict[SshMachine, list[Launch]] = {}
        for launch in launches:
            by_machine.setdefault(self._machine_for(launch), []).append(launch)
        self._links.together(lambda machine: self._start(machine, by_machine[machine]), by_machine)

    def _start(self, machine: SshMachine, launches: Sequence[Launch]) -> None:
        for run in {launch.ticket.run for launch in launches}:
            started = [launch for launch in launches if launch.ticket.run == run]
            orders = {launch.ticket.title: order_of(launch) for launch in started}
            try:
                link = self._links.get(machine)
                link.ask("start", run=run, orders=orders, program=bootstrap_program())
            except Unreachable as error:
                reason = f"could not be started: {error}"
                self._failed.setdefault(run, {}).update(dict.fromkeys(orders, Exit(None, reason=reason)))

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed: dict[str, Exit | None] = {}
        for machine, titles in self._used.get(run, {}).items():
            try:
                states = _states(self._links.get_now(machine), run)
                listed |= {title: not_started(words) for title, words in states.items() if words != ""}
            except Unreachable as error:
                listed |= dict.fromkeys(titles, self._links.lost(machine, error))
        return {**listed, **self._failed.get(run, {})}

    def delete(self, run: str, titles: Collection[str]) -> None:
        """End members. What cannot be reached ends by itself, when it finds that nobody waits for it any more."""
        used = {machine: sorted(known & set(titles)) for machine, known in self._used.get(run, {}).items()}

        def end(machine: SshMachine) -> None:
            try:
                self._links.get(machine).ask("end", run=run, titles=used[machine], grace_s=GRACE_S + _RECORD_S)
            except Unreachable as error:
                logger.warning("members could not be ended: %s", error)

        self._links.together(end, [machine for machine, known in used.items() if known])

    def has_room(self, num_members: int, offer: str) -> bool:
        pool = self._pool_of(offer)
        reached = [machine for machine in pool.machines if not self._links.is_silent(machine)]
        return num_members <= sum(max(0, pool.room - self._num_tenants(machine)) for machine in reached)

    def place(self, launch: Launch) -> dict[str, str]:
        return dict(self._machine_for(launch)._asdict())

    def watch(self, handle: MemberHandle, title: str) -> bool:
        self._settle(SshMachine(**handle.place), handle.run, title, takes_room=True)
        return True

    def _machine_for(self, launch: Launch) -> SshMachine:
        """Return the machine of a member: the first with room, or that with the fewest members if all are full."""
        run, title = launch.ticket.run, launch.ticket.title
        for machine, titles in self._used.get(run, {}).items():
            if title in titles:
                return machine
        pool = self._pool_of(launch.offer)
        reached = [machine for machine in pool.machines if not self._links.is_silent(machine)] or pool.machines
        num_tenants = {machine: self._num_tenants(machine) for machine in reached}
        free = next((machine for machine in reached if num_tenants[machine] < pool.room), None)
        machine = free or min(reached, key=num_tenants.__getitem__)
        self._settle(machine, run, title, takes_room=launch.trains)
        return machine

    def _settle(self, machine: SshMachine, run: str, title: str, *, takes_room: bool) -> None:
        self._used.setdefault(run, {}).setdefault(machine, set()).add(title)
        if takes_room:
            self._tenants.setdefault(machine, set()).add((run, title))

    def _num_tenants(self, machine: SshMachine) -> int:
        """Return how many members take room on a machine, as far as is known here."""
        try:
            link = self._links.get_now(machine)
        except Unreachable:
            link = None
        return sum(
            title not in self._failed.get(run, {}) and (link is None or link.states(run).get(title) is None)
            for run, title in self._tenants.get(machine, ())
        )

    def sizes(self, offer: str) -> dict[str, Any]:
        """Ask a machine for its size, as the file of machines gives it."""
        machine = self._pool_of(offer).machines[0]
        try:
            facts = self._links.get(machine).ask("facts")
        except Unreachable as error:
            raise InputError(f"{error}; check it with: ssh {machine.host}") from error
        gpus = facts["gpus"]
        sizes = {"vcpus": float(facts["cores"]), "memory": facts["memory_bytes"]}
        if gpus:
            sizes |= {"gpu": gpus[0]["name"], "num_gpus": len(gpus), "gpu_memory": gpus[0]["memory_bytes"] or 0}
        return sizes

    def release(self) -> None:
        """Close all connections; members live on."""
        self._links.close()


def _states(link: LineLink, run: str) -> Mapping[str, str | None]:
    """Return the states of a run's members on a machine, which its agent tells by itself once it was asked."""
    if not link.is_watching(run):
        link.ask("watch", run=run)  # the states come before the answer
    return link.states(run)
