"""All platforms as one: each gets its own members, and none the members of another."""

import threading
from collections.abc import Collection, Sequence

import pytest

from tests.platforms import PretendedPlatform, a_launch
from zooid.core.errors import InputError
from zooid.core.runs.member_records import MemberHandle
from zooid.platforms import Launch
from zooid.platforms.any_platform import AnyPlatform
from zooid.platforms.local import LocalPlatform


class Meeting(PretendedPlatform):
    """A platform that starts members only while another one does so, too."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self.barrier = barrier

    def create(self, launches: Sequence[Launch]) -> None:
        self.barrier.wait(10.0)
        super().create(launches)

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        return [title for title in titles if title in self.ends]

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return True


def launch_on(platform: str, member: str, offer: str = "") -> Launch:
    launch = a_launch(member)
    return Launch(launch.ticket, offer, launch.trains, platform)


def test_platforms_start_their_members_side_by_side() -> None:
    made = {name: Meeting(threading.Barrier(1)) for name in ("ssh", "ray")}
    made["ssh"].barrier = made["ray"].barrier = threading.Barrier(2)
    platform = AnyPlatform({name: lambda name=name: made[name] for name in made}, lambda offer: "ssh")  # type: ignore[misc]
    platform.create([launch_on("ssh", "r0s0"), launch_on("ray", "r1s0"), launch_on("ssh", "r2s0")])
    assert [sorted(made[name].ends) for name in ("ssh", "ray")] == [["000000.r0s0", "000000.r2s0"], ["000000.r1s0"]]
    platform.create([])
    assert platform.delete("run", ["000000.r1s0", "000000.r9s0"]) == {"000000.r1s0"}, "whom one of them cannot end"


def test_handles_that_are_not_followed_are_not_watched() -> None:
    meeting = Meeting(threading.Barrier(1))
    handle = MemberHandle(run="run", member="r0s0", platform="ssh", offer="", launched_at_s=0.0, place={})
    for follows in (True, False):
        platform = AnyPlatform({"ssh": lambda: meeting}, lambda offer: "ssh", lambda handle, is_so=follows: is_so)  # type: ignore[misc]
        assert platform.watch(handle, "000000.r0s0") == follows
    assert not AnyPlatform({}, lambda offer: "ssh").watch(handle, "000000.r0s0")


def test_this_machine_does_not_start_members_of_others() -> None:
    with pytest.raises(InputError, match=r"^r0s0 is a member for ssh\.gpu1, but the given `platform` starts"):
        LocalPlatform(forks=False).create([launch_on("ssh", "r0s0", "ssh.gpu1")])
