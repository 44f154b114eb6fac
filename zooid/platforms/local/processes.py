"""Members as processes of this machine, each in its own session, so that Ctrl-C reaches only the coordinator."""

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import structs

from zooid.core.environment import member_environment
from zooid.core.errors import InputError
from zooid.core.runs.liveness import own_mark
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.core.runs.ticket import Ticket
from zooid.entry import machine_folder
from zooid.entry.attendant import GRACE_S
from zooid.entry.cgroups import confine
from zooid.platforms.local.forks import fork_member, ready_zygote
from zooid.platforms.platform import Launch, not_started

_GONE = Exit(None)
_RECORD_S = 1.0
"""Seconds that a process has after its member's end to record it, when both are to end."""

_PATIENCE_S = 10.0
"""The longest time that a process may take to begin or to end, before it is left to itself."""
_LOOK_S = 0.005


class _Process(Protocol):
    """The part of subprocess.Popen that is needed of a process that attends a member."""

    def poll(self) -> int | None: ...


class LocalPlatform:
    """Starts members with this interpreter; `prefix` may run them inside a command such as `ip netns exec NAME`.

    Members are forked from a zygote, which has already imported torch. Members with a prefix are started as new
    processes. So are members with a size, since memory that they share with a zygote would not count towards their
    limit.
    """

    name = "local"
    look_s = 0.05

    def __init__(self, prefix: Callable[[Launch], Sequence[str]] | None = None, *, forks: bool = True) -> None:
        """`forks` says whether members may be forked from zygotes."""
        self._prefix = prefix or (lambda launch: ())
        self._forks = forks
        self._started: dict[str, dict[str, _Process]] = {}
        """Processes that this process has started, by run and title."""

    def expect(self, num_threads: int, *, uses_gpus: bool = False) -> None:
        """Prepare a zygote for such members in the background, so that they can start at once."""
        if self._forks:
            ready_zygote(member_environment(num_threads, uses_gpus=uses_gpus))

    def create(self, launches: Sequence[Launch]) -> None:
        """Start processes; one with a size is limited from its first instruction, or rejected."""
        for launch in launches:
            if launch.platform != self.name:
                raise InputError(
                    f"{launch.member} is a member for {launch.offer}, but the given `platform` starts members on this "
                    "machine; leave out `platform`, or give offers of this machine"
                )
        for size in {launch.ticket.size for launch in launches if launch.ticket.size is not None}:
            confine(size).remove()  # whether this process may limit others is best found out by doing it
        for run in {launch.ticket.run for launch in launches}:
            machine_folder.keep(run)  # its members might not be there yet
        for launch in launches:
            if self.members(launch.ticket.run).get(launch.ticket.title, _GONE) is None:
                continue
            ticket = structs.replace(launch.ticket, prefix=(*self._prefix(launch), *launch.ticket.prefix))
            self._started.setdefault(ticket.run, {})[ticket.title] = self._start(ticket)

    def members(self, run: str) -> Mapping[str, Exit | None]:
        listed = machine_folder.states(run)
        for title, process in self._started.get(run, {}).items():
            listed[title] = None if process.poll() is None else machine_folder.last_words(run, title)
        return {title: not_started(words) for title, words in listed.items() if words != ""}

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        """End the whole sessions of the members, with all processes that they have started."""
        own = self._started.get(run, {})
        ending = {title: process for title, process in own.items() if title in titles}
        # one that has not taken its place yet cannot be found by its title
        _wait_until(
            lambda: all(
                process.poll() is not None or machine_folder.list_members(run).get(title)
                for title, process in ending.items()
            )
        )
        left = machine_folder.end_members(run, list(titles), GRACE_S + _RECORD_S)
        _wait_until(lambda: all(process.poll() is not None for process in ending.values()))
        for title in ending:
            del own[title]
        if all(process.poll() is not None for process in own.values()):
            self._started.pop(run, None)
            machine_folder.leave(run)
        return left

    def kill(self, run: str, title: str) -> bool:
        """Kill a member and all that belongs to it without notice, as a machine that is lost; False if it was gone."""
        is_alive = machine_folder.list_members(run).get(title, False)
        machine_folder.end_members(run, [title], grace_s=0.0)
        return is_alive

    def release(self) -> None:
        pass

    def has_room(self, num_members: int, offer: str) -> bool:
        return True

    def place(self, launch: Launch) -> dict[str, str]:
        return {"machine": own_mark().machine}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        machine = handle.place.get("machine")
        return bool(machine) and machine == own_mark().machine

    def _start(self, ticket: Ticket) -> _Process:
        environment = member_environment(ticket.num_threads, uses_gpus=ticket.uses_gpus)
        words = Path(machine_folder.open_words(ticket.run, ticket.title))
        if self._forks and ticket.size is None and not ticket.prefix:
            return fork_member(ticket, environment, words)
        with words.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "zooid.entry", msgspec.json.encode(ticket).decode()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
