"""Members on machines that ssh reaches: the user's own, with the user's own configuration."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from zooid.core.errors import InputError
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.entry.attendant import GRACE_S
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.programs import bootstrap_program
from zooid.platforms.ssh.agent_link import AgentLink, MachineUnreachable

logger = logging.getLogger(__name__)

_RETRY_S = 5.0
"""Seconds between two attempts to reach a machine again."""
_LOST_S = 15.0
"""Seconds after which the members of a machine that cannot be reached count as lost."""
_RECORD_S = 2.0


class SshMachine(NamedTuple):
    """A machine as ssh knows it."""

    host: str
    python: str = "python3"
    """Path of the interpreter there, which has torch and obstore."""
    config: str = ""
    """Path of an ssh configuration file; empty for the user's own."""


class SshPlatform:
    """Starts members on machines, each through an agent at the other end of one ssh connection."""

    name = "ssh"
    look_s = 0.1
    """States are pushed by the agents, and looking at them costs nothing."""

    def __init__(self, machine_of: Callable[[str], SshMachine]) -> None:
        """`machine_of` returns the machine of an offer, by the offer's name."""
        self._machine_of = machine_of
        self._links: dict[SshMachine, AgentLink] = {}
        self._cut_off: dict[SshMachine, tuple[float, float, str]] = {}
        """When a machine was lost, when it was last tried, by the monotonic clock, and why."""
        self._used: dict[str, dict[SshMachine, set[str]]] = {}
        """Machines and titles of each run."""
        self._failed: dict[str, dict[str, Exit]] = {}
        self._lock = threading.Lock()

    def create(self, launches: Sequence[Launch]) -> None:
        by_machine: dict[SshMachine, list[Launch]] = {}
        for launch in launches:
            machine = self._machine_of(launch.offer)
            by_machine.setdefault(machine, []).append(launch)
            self._used.setdefault(launch.ticket.run, {}).setdefault(machine, set()).add(launch.ticket.title)
        self._together(lambda machine: self._start(machine, by_machine[machine]), by_machine)

    def _start(self, machine: SshMachine, launches: Sequence[Launch]) -> None:
        for run in {launch.ticket.run for launch in launches}:
            started = [launch for launch in launches if launch.ticket.run == run]
            orders = {launch.ticket.title: order_of(launch) for launch in started}
            try:
                link = self._link(machine)
                link.ask("start", run=run, orders=orders, program=bootstrap_program())
                link.watch(run)
            except MachineUnreachable as error:
                reason = f"could not be started: {error}"
                self._failed.setdefault(run, {}).update(dict.fromkeys(orders, Exit(None, reason=reason)))

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed: dict[str, Exit | None] = {}
        for machine, titles in self._used.get(run, {}).items():
            try:
                states = self._link(machine).watch(run)
                listed |= {title: not_started(words) for title, words in states.items() if words != ""}
            except MachineUnreachable as error:
                listed |= dict.fromkeys(titles, self._lost(machine, error))
        return {**listed, **self._failed.get(run, {})}

    def delete(self, run: str, titles: Collection[str]) -> None:
        """End members. What cannot be reached ends by itself, when it finds that nobody waits for it any more."""
        used = {machine: sorted(known & set(titles)) for machine, known in self._used.get(run, {}).items()}

        def end(machine: SshMachine) -> None:
            try:
                self._link(machine).ask("end", run=run, titles=used[machine], grace_s=GRACE_S + _RECORD_S)
            except MachineUnreachable as error:
                logger.warning("members could not be ended: %s", error)

        self._together(end, [machine for machine, known in used.items() if known])

    def has_room(self, num_members: int, offer: str) -> bool:
        return self._machine_of(offer) not in self._cut_off

    def place(self, offer: str) -> dict[str, str]:
        return dict(self._machine_of(offer)._asdict())

    def watch(self, handle: MemberHandle, title: str) -> bool:
        machine = SshMachine(**handle.place)
        self._used.setdefault(handle.run, {}).setdefault(machine, set()).add(title)
        return True

    def sizes(self, offer: str) -> dict[str, Any]:
        """Ask a machine for its size, as the file of machines gives it."""
        try:
            facts = self._link(self._machine_of(offer)).ask("facts")
        except MachineUnreachable as error:
            raise InputError(f"{error}; check it with: ssh {self._machine_of(offer).host}") from error
        gpus = facts["gpus"]
        sizes = {"vcpus": float(facts["cores"]), "memory": facts["memory_bytes"]}
        if gpus:
            sizes |= {"gpu": gpus[0]["name"], "num_gpus": len(gpus), "gpu_memory": gpus[0]["memory_bytes"] or 0}
        return sizes

    def release(self) -> None:
        """Close all connections; members live on."""
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()

    def _link(self, machine: SshMachine) -> AgentLink:
        """Return the connection to a machine; one that has ended is opened again, but not too often."""
        with self._lock:
            link = self._links.get(machine)
            if link is not None and link.is_open:
                return link
            now_s = time.monotonic()
            since_s, tried_s, why = self._cut_off.get(machine, (now_s, -_RETRY_S, ""))
            if now_s - tried_s < _RETRY_S:
                raise MachineUnreachable(why)
            if link is not None:
                why = f"{machine.host} cannot be reached: {link.complaint}"
                link.close()
                del self._links[machine]
            self._cut_off[machine] = (since_s, now_s, why)
        link = AgentLink(*machine)
        try:
            link.begin()
        except MachineUnreachable as error:
            link.close()
            self._cut_off[machine] = (since_s, time.monotonic(), str(error))
            raise
        with self._lock:
            self._links[machine] = link
            self._cut_off.pop(machine, None)
        return link

    def _lost(self, machine: SshMachine, error: MachineUnreachable) -> Exit | None:
        """Return the exit of the members of a machine that cannot be reached; None as long as it may come back."""
        since_s = self._cut_off.get(machine, (time.monotonic(), 0.0, ""))[0]
        if time.monotonic() - since_s < _LOST_S:
            return None
        return Exit(None, reason=f"is lost with its machine: {error}")

    @staticmethod
    def _together(work: Callable[[SshMachine], None], machines: Collection[SshMachine]) -> None:
        if machines:
            with ThreadPoolExecutor(len(machines)) as pool:
                list(pool.map(work, machines))
