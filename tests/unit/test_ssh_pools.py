"""Members of an offer with several machines: each gets the first machine that has room and can be reached."""

from collections.abc import Mapping
from typing import Any

import pytest

from lab.waiting import wait_until
from tests.platforms import a_launch
from zooid.core.errors import InputError
from zooid.core.runs.member_records import MemberHandle
from zooid.platforms import Launch
from zooid.platforms.line_link import Unreachable
from zooid.platforms.ssh import SshMachine, SshPlatform, SshPool, ssh_machines

MACHINES = tuple(SshMachine(name) for name in ("one", "two", "three"))


class Agent:
    """An agent that tells the states which the test sets."""

    is_open = True

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.facts: dict[str, Any] = {}

    def ask(self, operation: str, **arguments: Any) -> Any:
        return self.facts if operation == "facts" else None

    def states(self, run: str) -> Mapping[str, str]:
        return self.ended

    def is_watching(self, run: str) -> bool:
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> dict[str, Agent]:
    """The agents of machines that can be reached; all of them can, as long as the test does not remove any."""
    made = {machine.host: Agent() for machine in MACHINES}

    def open_agent(machine: SshMachine) -> Agent:
        if machine.host not in made:
            raise Unreachable(f"{machine.host} cannot be reached")
        return made[machine.host]

    monkeypatch.setattr(ssh_machines, "open_agent", open_agent)
    return made


def a_platform(room: int = 1) -> SshPlatform:
    return SshPlatform(lambda offer: SshPool(MACHINES, room))


def hosts(platform: SshPlatform, launches: list[Launch]) -> list[str]:
    return [platform.place(launch)["host"] for launch in launches]


def members(number: int) -> list[Launch]:
    return [a_launch(f"r{replica}s0", offer="ssh.one+two+three") for replica in range(number)]


@pytest.mark.parametrize(
    ("room", "expected"), [(1, "one two three one"), (2, "one one two two"), (4, "one one one one")]
)
def test_a_machine_is_filled_before_the_next(agents: dict[str, Agent], room: int, expected: str) -> None:
    assert hosts(a_platform(room), members(4)) == expected.split()


def test_a_member_keeps_its_place(agents: dict[str, Agent]) -> None:
    platform, launches = a_platform(), members(3)
    assert hosts(platform, launches) == hosts(platform, launches)


def test_who_only_prepares_takes_no_room(agents: dict[str, Agent]) -> None:
    platform = a_platform()
    assert hosts(platform, [a_launch("preparer", offer="ssh.one", trains=False)]) == ["one"]
    assert hosts(platform, members(1)) == ["one"]


def test_room_is_what_members_have_not_taken_or_have_left(agents: dict[str, Agent]) -> None:
    platform, launches = a_platform(), members(3)
    assert [platform.has_room(number, "ssh") for number in (3, 4)] == [True, False]
    hosts(platform, launches)
    assert not platform.has_room(1, "ssh")
    agents["two"].ended[launches[1].ticket.title] = ""
    platform._links.get(MACHINES[1])
    assert [platform.has_room(number, "ssh") for number in (1, 2)] == [True, False]
    assert hosts(platform, [a_launch("r7s0", offer="ssh")]) == ["two"]


def test_machines_that_cannot_be_reached_are_left_out(agents: dict[str, Agent]) -> None:
    del agents["one"]
    platform = a_platform()
    assert platform.place(members(1)[0])["host"] == "one", "nobody has tried yet"
    wait_until(lambda: platform._links.is_silent(MACHINES[0]))
    assert hosts(platform, [a_launch("r5s0", offer="ssh"), a_launch("r6s0", offer="ssh")]) == ["two", "three"]
    assert not platform.has_room(1, "ssh")


def test_members_that_others_have_started_take_room(agents: dict[str, Agent]) -> None:
    platform = a_platform()
    handle = MemberHandle(
        run=members(1)[0].ticket.run,
        member="r0s0",
        platform="ssh",
        offer="ssh.one+two+three",
        launched_at_s=0.0,
        place={"host": "one", "python": "python3", "config": ""},
    )
    assert platform.watch(handle, members(1)[0].ticket.title)
    assert hosts(platform, members(2)) == ["one", "two"], "the first is found again, and the second gets its own"


def test_a_machine_whose_driver_is_broken_is_not_taken_for_one_without_gpus(agents: dict[str, Agent]) -> None:
    agents["one"].facts = {"cores": 8, "memory_bytes": 2**34, "gpus": [], "gpu_error": "Failed to initialize NVML"}
    with pytest.raises(
        InputError, match=r"the GPUs of one are not known.*: Failed to initialize NVML; repair the driver"
    ):
        a_platform().sizes("ssh.one")
    agents["one"].facts["gpu_error"] = ""
    assert a_platform().sizes("ssh.one") == {"vcpus": 8.0, "memory": 2**34}
