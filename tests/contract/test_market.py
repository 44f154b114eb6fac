"""A market of this machine: each offer has its boot delay, and its trace says how many members may run."""

import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from lab.waiting import wait_until
from tests.platforms import a_launch
from zooid.core.errors import InputError
from zooid.core.resources.spot_trace import SpotTrace, TraceMetadata
from zooid.platforms import Exit, Launch
from zooid.platforms.local import LocalPlatform
from zooid.platforms.local.spot_market import SpotMarket, Supply

SPOT, OWN, OTHER = "spot", "on demand", "another spot"
GAP_S = 100.0


class Sleepers(LocalPlatform):
    """Starts processes that sleep, instead of members."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            self.processes[launch.ticket.title] = subprocess.Popen(["sleep", "60"])

    def members(self, run: str) -> Mapping[str, Exit | None]:
        statuses = {title: process.poll() for title, process in self.processes.items()}
        return {title: None if status is None else Exit(status) for title, status in statuses.items()}

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        for title in self.processes.keys() & titles:
            self.processes[title].terminate()
            self.processes[title].wait()
        return ()

    def kill(self, run: str, title: str) -> bool:
        self.processes[title].kill()
        self.processes[title].wait()
        return True


@dataclass
class Scene:
    market: SpotMarket
    started: list[str] = field(default_factory=list)
    """Titles of members."""

    def start(self, offer: str, *, trains: bool = True) -> str:
        launch = a_launch(f"m{len(self.started)}", offer=offer, trains=trains)
        self.started.append(launch.ticket.title)
        self.market.create([launch])
        return launch.ticket.title

    def ends(self) -> list[Exit | None]:
        listed = self.market.members("run")
        return [listed[title] for title in self.started]

    def has_begun(self, title: str) -> bool:
        self.market.members("run")
        assert isinstance(self.market.platform, Sleepers)
        return title in self.market.platform.processes


@pytest.fixture
def scenes() -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        scene.market.delete("run", scene.started)


def trace(*data: int) -> SpotTrace:
    return SpotTrace(metadata=TraceMetadata(gap_seconds=GAP_S), data=data)


def opened(scenes: list[Scene], supplies: dict[str, Supply], speed: float = 1e-6, from_s: float = 0.0) -> Scene:
    scenes.append(Scene(SpotMarket(supplies, from_s=from_s, speed=speed, platform=Sleepers())))
    scenes[-1].market.open()
    return scenes[-1]


def test_a_process_begins_when_its_machine_has_booted(scenes: list[Scene]) -> None:
    scene = opened(scenes, {SPOT: Supply(boot_s=60.0), OWN: Supply()}, speed=200.0)
    booting, begun = scene.start(SPOT), scene.start(OWN)
    assert scene.ends() == [None, None]
    assert scene.has_begun(begun)
    assert not scene.has_begun(booting)
    first_s = scene.market.trace_s
    wait_until(lambda: scene.has_begun(booting))
    assert scene.market.trace_s - first_s > 50.0
    assert scene.ends() == [None, None]


def test_a_member_that_ends_while_its_machine_boots_never_begins(scenes: list[Scene]) -> None:
    scene = opened(scenes, {SPOT: Supply(boot_s=1.0)})
    scene.market.delete("run", [booting := scene.start(SPOT)])
    assert scene.ends() == [Exit(-15)]
    assert not scene.has_begun(booting)


def test_members_begin_at_once_before_the_market_opens(scenes: list[Scene]) -> None:
    scenes.append(Scene(SpotMarket({SPOT: Supply(trace(0), boot_s=1e9)}, platform=Sleepers())))
    assert scenes[0].has_begun(scenes[0].start(SPOT))
    assert scenes[0].ends() == [None]
    assert not scenes[0].market.has_room(1, SPOT), "room is that of the time at which it will open"


def test_the_first_member_that_trains_may_open_the_market(scenes: list[Scene]) -> None:
    market = SpotMarket({SPOT: Supply(boot_s=1e9)}, opens_with_members=True, platform=Sleepers())
    scenes.append(Scene(market))
    preparer = scenes[0].start("unknown here", trains=False)
    assert market.trace_s == 0.0
    assert scenes[0].has_begun(preparer)
    booting = scenes[0].start(SPOT)
    assert scenes[0].ends() == [None, None]
    assert market.trace_s > 0.0
    assert not scenes[0].has_begun(booting)


def test_a_trace_kills_the_members_of_its_own_offers_only(scenes: list[Scene]) -> None:
    shared = trace(3, 1)
    supplies = {SPOT: Supply(shared), OTHER: Supply(shared, boot_s=1e9), OWN: Supply()}
    scene = opened(scenes, supplies, from_s=GAP_S - 1e-3)
    for offer in (SPOT, OTHER, OWN, OWN):
        scene.start(offer)
    assert scene.market.has_room(1, SPOT)
    assert not scene.market.has_room(2, OTHER), "both share the instances of one trace"
    assert scene.market.has_room(100, OWN)
    assert scene.ends() == [None] * 4
    scene.market.from_s = GAP_S
    wait_until(lambda: scene.ends()[:2].count(None) == 1)
    assert scene.ends()[2:] == [None, None]
    assert Exit(-9) in scene.ends()[:2]
    assert scene.market.num_killed == 1
    assert not scene.market.has_room(1, SPOT)
    scene.market.close()
    scene.start(SPOT)
    assert scene.ends()[-1] is None, "nobody is killed while the market spares members"


@pytest.mark.parametrize(("num_spot", "left_s"), [(1, 0.0), (2, 2 * GAP_S), (3, None)])
def test_the_time_until_members_can_be_had(scenes: list[Scene], num_spot: int, left_s: float | None) -> None:
    market = opened(scenes, {SPOT: Supply(trace(1, 0, 2)), OWN: Supply()}).market
    found_s = market.left_s({SPOT: num_spot, OWN: 7})
    assert found_s == left_s or (found_s is not None and found_s * market.speed == pytest.approx(left_s, abs=1.0))


def test_an_offer_that_the_market_does_not_have_is_rejected(scenes: list[Scene]) -> None:
    scene = opened(scenes, {SPOT: Supply()})
    with pytest.raises(InputError, match="no offer 'on demand'; it has 'spot'"):
        scene.start(OWN)
