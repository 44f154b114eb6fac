"""Members on machines that ssh reaches: the user's own, with the user's own configuration."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from zooid.core.errors import InputError
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.entry.attendant import GRACE_S
from zooid.platforms.kept_links import KeptLinks
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.programs import bootstrap_program
from zooid.platforms.ssh.agent_link import SshMachine, open_agent

logger = logging.getLogger(__name__)

_RECORD_S = 2.0
"""Seconds that a member has to record its end, after the time it has to end."""


class SshPlatform:
    """Starts members on machines, each through an agent at the other end of one ssh connection."""

    name = "ssh"
    look_s = 0.1
    """States are pushed by the agents, and looking at them costs nothing."""

    def __init__(self, machine_of: Callable[[str], SshMachine]) -> None:
        """`machine_of` returns the machine of an offer, by the offer's name."""
        self._machine_of = machine_of
        self._links = KeptLinks(open_agent)
        self._used: dict[str, dict[SshMachine, set[str]]] = {}
        """Machines and titles of each run."""
        self._failed: dict[str, dict[str, Exit]] = {}

    def create(self, launches: Sequence[Launch]) -> None:
        by_machine: dict[SshMachine, list[Launch]] = {}
        for launch in launches:
            machine = self._machine_of(launch.offer)
            by_machine.setdefault(machine, []).append(launch)
            self._used.setdefault(launch.ticket.run, {}).setdefault(machine, set()).add(launch.ticket.title)
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
        return not self._links.is_silent(self._machine_of(offer))

    def place(self, offer: str) -> dict[str, str]:
        return dict(self._machine_of(offer)._asdict())

    def watch(self, handle: MemberHandle, title: str) -> bool:
        machine = SshMachine(**handle.place)
        self._used.setdefault(handle.run, {}).setdefault(machine, set()).add(title)
        return True

    def sizes(self, offer: str) -> dict[str, Any]:
        """Ask a machine for its size, as the file of machines gives it."""
        try:
            facts = self._links.get(self._machine_of(offer)).ask("facts")
        except Unreachable as error:
            raise InputError(f"{error}; check it with: ssh {self._machine_of(offer).host}") from error
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
