"""A market of this machine: each offer has its boot delay, and its trace says how many members may run."""

import itertools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.processes import wait_until
from zooid.core.errors import InputError
from zooid.core.resources.spot_trace import SpotTrace, TraceMetadata
from zooid.platforms import Exit, Launch
from zooid.platforms.local import LocalPlatform
from zooid.platforms.local.processes import LocalHandle
from zooid.platforms.local.spot_market import Instance, SpotMarket, Supply

SPOT, OWN, OTHER = "spot", "on demand", "another spot"
GAP_S = 100.0


class Sleepers(LocalPlatform):
    """Starts processes that sleep, instead of members."""

    def launch(self, launch: Launch) -> LocalHandle:
        log = self._logs / f"{launch.member}.log"
        log.write_text("begun\n")
        return LocalHandle(subprocess.Popen(["sleep", "60"], start_new_session=True), log)


@dataclass
class Scene:
    market: SpotMarket
    started: list[Instance] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def start(self, offer: str) -> Instance:
        instance = self.market.launch(Launch(f"m{next(self.numbers)}", "worker", "", 1, offer=offer))
        self.started.append(instance)
        return instance

    def ends(self) -> list[Exit | None]:
        return [self.market.poll(instance) for instance in self.started]


@pytest.fixture
def scenes() -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        for instance in scene.started:
            scene.market.terminate(instance)


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
    assert scene.market.locate(booting) == {}
    assert scene.market.logs(booting) == ""
    assert scene.market.logs(begun) == "begun\n"
    first_s = scene.market.trace_s
    wait_until(lambda: scene.market.poll(booting) is None and scene.market.logs(booting))
    assert scene.market.trace_s - first_s > 50.0
    location = scene.market.locate(booting)
    found = scene.market.find(location)
    assert found is not None
    assert scene.market.poll(found) is None


def test_a_member_that_ends_while_its_machine_boots_never_begins(scenes: list[Scene]) -> None:
    scene = opened(scenes, {SPOT: Supply(boot_s=1.0)})
    scene.market.terminate(booting := scene.start(SPOT))
    assert scene.ends() == [Exit(-15)]
    assert booting.process is None


def test_members_begin_at_once_before_the_market_opens(scenes: list[Scene]) -> None:
    scenes.append(Scene(SpotMarket({SPOT: Supply(trace(0), boot_s=1e9)}, platform=Sleepers())))
    scenes[0].start(SPOT)
    assert scenes[0].ends() == [None]
    assert scenes[0].started[0].process is not None
    assert not scenes[0].market.has_room(1, SPOT), "room is that of the time at which it will open"


def test_the_first_member_that_trains_may_open_the_market(scenes: list[Scene]) -> None:
    market = SpotMarket({SPOT: Supply(boot_s=1e9)}, opens_with_members=True, platform=Sleepers())
    scenes.append(Scene(market))
    preparer = market.launch(Launch("preparer", "worker", "", 1, offer="unknown here", trains=False))
    scenes[0].started.append(preparer)
    assert market.trace_s == 0.0
    assert preparer.process is not None
    scenes[0].start(SPOT)
    assert scenes[0].ends() == [None, None]
    assert market.trace_s > 0.0
    assert scenes[0].started[1].process is None


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
