"""Members on machines that ssh reaches: the user's own, with the user's own configuration."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from zooid.core.errors import InputError
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.linked_members import LinkedMembers
from zooid.platforms.orders import order_of
from zooid.platforms.platform import Launch, not_started
from zooid.platforms.programs import bootstrap_program
from zooid.platforms.ssh.agent_link import SshMachine, SshPool, open_agent


class SshPlatform:
    """Starts members on machines, each through an agent at the other end of one ssh connection."""

    name = "ssh"
    look_s = 0.1
    """States are pushed by the agents, and looking at them costs nothing."""

    def __init__(self, pool_of: Callable[[str], SshPool]) -> None:
        """`pool_of` returns the machines of an offer, by the offer's name."""
        self._pool_of = cache(pool_of)
        self._members: LinkedMembers[SshMachine] = LinkedMembers(open_agent)
        self._links = self._members.links
        self._visitors: set[tuple[str, str]] = set()
        """Runs and titles of members that do not train, and take no room."""

    def create(self, launches: Sequence[Launch]) -> None:
        by_machine: dict[SshMachine, dict[str, list[Launch]]] = {}
        for launch in launches:
            by_run = by_machine.setdefault(self._machine_for(launch), {})
            by_run.setdefault(launch.ticket.run, []).append(launch)

        def start(machine: SshMachine) -> None:
            for run, started in by_machine[machine].items():
                orders = {launch.ticket.title: order_of(launch) for launch in started}
                self._members.start(machine, run, orders, orders=orders, program=bootstrap_program())

        self._links.together(start, by_machine)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return self._members.listed(run, _states)

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        return self._members.end(run, titles)

    def has_room(self, num_members: int, offer: str) -> bool:
        pool = self._pool_of(offer)
        reached = [machine for machine in pool.machines if not self._links.is_silent(machine)]
        return num_members <= sum(max(0, pool.room - self._num_tenants(machine)) for machine in reached)

    def place(self, launch: Launch) -> dict[str, str]:
        return dict(self._machine_for(launch)._asdict())

    def watch(self, handle: MemberHandle, title: str) -> bool:
        if handle.place.keys() != set(SshMachine._fields):
            return False
        self._members.settle(SshMachine(**handle.place), handle.run, title)
        return True

    def sizes(self, offer: str) -> dict[str, Any]:
        """Ask a machine for its size, as the file of machines gives it."""
        machine = self._pool_of(offer).machines[0]
        try:
            facts = self._links.get(machine).ask("facts")
        except Unreachable as error:
            raise InputError(f"{error}; check it with: ssh {machine.host}") from error
        if facts["gpu_error"]:
            raise InputError(
                f"the GPUs of {machine.host} are not known, since nvidia-smi fails there: {facts['gpu_error']}; repair "
                "the driver, or give vcpus and memory in the file of machines, with gpu, num_gpus and gpu_memory if "
                "members are to use GPUs"
            )
        gpus = facts["gpus"]
        sizes = {"vcpus": float(facts["cores"]), "memory": facts["memory_bytes"]}
        if gpus:
            sizes |= {"gpu": gpus[0]["name"], "num_gpus": len(gpus), "gpu_memory": gpus[0]["memory_bytes"] or 0}
        return sizes

    def release(self) -> None:
        """Close all connections; members live on."""
        self._links.close()

    def _machine_for(self, launch: Launch) -> SshMachine:
        """Return the machine of a member: the first with room, or that with the fewest members if all are full."""
        run, title = launch.ticket.run, launch.ticket.title
        known = self._members.place_of(run, title)
        if known is not None:
            return known
        pool = self._pool_of(launch.offer)
        reached = [machine for machine in pool.machines if not self._links.is_silent(machine)] or pool.machines
        num_tenants = {machine: self._num_tenants(machine) for machine in reached}
        free = next((machine for machine in reached if num_tenants[machine] < pool.room), None)
        chosen = free or min(reached, key=num_tenants.__getitem__)
        self._members.settle(chosen, run, title)
        if not launch.trains:
            self._visitors.add((run, title))
        return chosen

    def _num_tenants(self, machine: SshMachine) -> int:
        """Return how many members take room on a machine, as far as is known here."""
        return sum(member not in self._visitors for member in self._members.at(machine))


def _states(link: LineLink, run: str, titles: Collection[str]) -> dict[str, Exit | None]:
    """Return the states of a run's members on a machine, which its agent tells by itself once it was asked."""
    if not link.is_watching(run):
        link.ask("watch", run=run)  # the states come before the answer
    return {title: not_started(words) for title, words in link.states(run).items() if words != ""}
