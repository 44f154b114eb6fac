"""Runs that go on with other members while they train, because members were lost or a price has risen."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from tests.integration.forking import ForkingPlatform
from tests.integration.jobs import plan_by_hand, traced_job, write_job
from tests.integration.recording import still_running
from tests.integration.reference import Trained, train_composed_layers
from tests.unit import profiles
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.coordinator.runs.run_progress import RunResult
from zooid.core.plans.plan import Limits, Plan
from zooid.core.plans.profile import GradientReady, Profile
from zooid.core.records import encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.allowance import PriceList
from zooid.core.runs.events import Event, FleetChosen, MemberExited, Metered, PriceChanged, RosterChanged, StepCommitted
from zooid.core.runs.steering import Steering
from zooid.platforms import Launch
from zooid.store import open_store

pytestmark = pytest.mark.timeout(180)

NUM_STEPS = 72
EARLY_STEP = 10
"""After this step, something happens."""
STEP_S = 0.08
"""Time of a step on four fast members, which have two grains each."""
_MEMBER = structs.replace(resolve_offer("local"), vcpus=1.0, billing_grain_s=0.001, startup_s=0.5)
FAST = structs.replace(_MEMBER, name="local:fast", market="spot", interruptions_per_hour=0.0, usd_per_hour=36.0)
SLOW = structs.replace(FAST, name="local:slow")
"""It takes a quarter longer than the fast one for every grain."""


class Market(ForkingPlatform):
    """The local platform, on which an offer can run out."""

    def __init__(self) -> None:
        super().__init__()
        self.offers: dict[str, str] = {}
        """The offer of every member that was launched."""
        self.sold_out: set[str] = set()

    def create(self, launches: Sequence[Launch]) -> None:
        self.offers |= {launch.member: launch.offer for launch in launches}
        super().create(launches)

    def has_room(self, num_members: int, offer: str) -> bool:
        return offer not in self.sold_out


@dataclass
class Scene:
    """A rehearsed job with a profile for each of two offers."""

    job_file: Path
    plan: Plan
    profiles: dict[str, Profile]
    reference: Trained
    start_s: float = 0.0
    """How long it takes until members train, on this machine as busy as it is now."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    job_file = write_job(
        tmp_path_factory.mktemp("job") / "job.py",
        num_samples=480,
        fields={"epochs": str(NUM_STEPS // 12), "grain_size": "5"},
    )
    plan = plan_by_hand(job_file, num_replicas=4, cuts=(), transport="tcp")
    stages = tuple(structs.replace(stage, offer=FAST.name) for stage in plan.stages)
    plan = structs.replace(plan, offers=(FAST,), stages=stages)
    _, layered = traced_job(job_file)
    sample_s = STEP_S / 10 / layered.num_layers

    def profile(times: float) -> Profile:
        layers = []
        for number in range(layered.num_layers):
            sizes = layered.trained_bytes(number, number + 1)
            made = profiles.layer(times * sample_s, parameter_bytes=sum(sizes.values()), sizes=(1, 5, 40))
            ready = tuple(GradientReady(name=name, num_bytes=size, at_share=0.5) for name, size in sizes.items())
            layers.append(structs.replace(made, gradients=ready))
        ways = [(a, b) for a in ("local", "store") for b in ("local", "store") if (a, b) != ("store", "store")]
        return profiles.profile(
            layers,
            tuple(profiles.link(1e9, 1e-4, from_site=source, to_site=target) for source, target in ways),
            model_fingerprint=plan.model_fingerprint,
            batch_size=plan.batch_size,
            num_samples=480,
            epochs=NUM_STEPS // 12,
            largest_grain=40,
        )

    made = Scene(job_file, plan, {FAST.name: profile(1.0), SLOW.name: profile(1.25)}, train_composed_layers(job_file))
    short_file = write_job(job_file.with_name("short.py"), num_samples=40, fields={"epochs": "2", "grain_size": "5"})
    short = plan_by_hand(short_file, num_replicas=4, cuts=(), transport="tcp")
    for number in range(2):  # the first members import much, and do not count
        began_s = time.monotonic()
        url = (job_file.parent / f"short-{number}").as_uri()
        zooid.train(short_file, store=url, plan=short, platform=Market())
        made.start_s = time.monotonic() - began_s
    return made


@dataclass
class Rehearsed:
    """A run of the scene, and what is done after an early step."""

    scene: Scene
    url: str
    limits: Limits
    slow: Offer = SLOW
    market: Market = field(default_factory=Market)
    seen: list[Event] = field(default_factory=list)

    def run(self) -> RunResult:
        rehearsed = zooid.rehearse(
            self.scene.plan,
            self.scene.profiles,
            job=self.scene.job_file,
            store=self.url,
            limits=self.limits,
            steering=Steering(offers=(FAST, self.slow), max_members=5, look_s=1.0),
            on_event=self.take,
            platform=self.market,
        )
        assert rehearsed.run is not None
        assert still_running(list(self.market.pids.values())) == []
        assert rehearsed.run.stopped == "", "it has trained to its end"
        assert self.scene.reference.weight_difference(self.url) <= 1e-9
        return rehearsed.run

    def take(self, event: Event) -> None:
        self.seen.append(event)
        if isinstance(event, StepCommitted) and event.step == EARLY_STEP:
            self.act()

    def act(self) -> None:
        raise NotImplementedError

    @property
    def chosen(self) -> list[FleetChosen]:
        return [event for event in self.seen if isinstance(event, FleetChosen)]

    def members(self, offer: Offer) -> list[str]:
        return [name for name, own in self.market.offers.items() if own == offer.name and name != "preparer"]


class Preempted(Rehearsed):
    """Three of four fast members are killed, and no other can be had."""

    def act(self) -> None:
        self.market.sold_out.add(FAST.name)
        for member in ("r1s0", "r2s0", "r3s0"):
            os.kill(self.market.pids[member], signal.SIGKILL)


def test_lost_members_are_replaced_on_another_offer_and_the_deadline_holds(scene: Scene, tmp_path: Path) -> None:
    """Alone, the survivor would take four times as long for the rest."""
    left_s = (NUM_STEPS - EARLY_STEP) * STEP_S
    run = Preempted(scene, tmp_path.as_uri(), Limits(deadline_s=scene.start_s + EARLY_STEP * STEP_S + 3 * left_s))
    run.run()
    first = run.chosen[0]
    assert "r1s0 and r2s0 and r3s0 was lost" in first.reason
    assert "1 × local:fast and " in first.fleet
    assert "× local:slow" in first.fleet
    assert run.members(FAST) == ["r0s0", "r1s0", "r2s0", "r3s0"]
    assert {event.offer for event in run.seen if isinstance(event, MemberExited)} == {FAST.name}
    last = [event for event in run.seen if isinstance(event, RosterChanged)][-1]
    assert last.ruling == "planned"
    assert "r0s0" in last.members, "the survivor has kept its seat"
    assert set(last.members) - {"r0s0"} <= set(run.members(SLOW))


class Tripling(Rehearsed):
    """The price of the fast members triples."""

    def act(self) -> None:
        prices = PriceList(usd_per_hour={FAST.name: 3 * FAST.usd_per_hour})
        open_store(self.url).put(keys.PRICES, encode_record(prices))


def test_a_price_that_triples_leads_to_another_fleet_and_the_budget_holds(scene: Scene, tmp_path: Path) -> None:
    """On the fast members, the rest would cost three times as much as before."""
    slow = structs.replace(SLOW, usd_per_hour=FAST.usd_per_hour / 4)
    usd_per_s = 4 * FAST.usd_per_hour / 3600
    early_usd = (scene.start_s + EARLY_STEP * STEP_S) * usd_per_s
    left_usd = (NUM_STEPS - EARLY_STEP) * STEP_S * usd_per_s
    limits = Limits(budget_usd=early_usd + 2.1 * left_usd, deadline_s=scene.start_s + 3 * NUM_STEPS * STEP_S)
    run = Tripling(scene, tmp_path.as_uri(), limits, slow)
    result = run.run()
    assert run.limits.budget_usd is not None
    assert result.usd <= run.limits.budget_usd
    assert [event.offer for event in run.seen if isinstance(event, PriceChanged)] == [FAST.name]
    assert "price of local:fast has changed" in run.chosen[0].reason
    assert run.members(slow), "it has really started members on the other offer"
    tariffs = {
        member.member: member.tariff for event in run.seen if isinstance(event, Metered) for member in event.running
    }
    prices = {name: tariffs[name].usd_per_hour for name in tariffs if name != "preparer"}
    assert prices == {
        **dict.fromkeys(run.members(FAST), 3 * FAST.usd_per_hour),
        **dict.fromkeys(run.members(slow), slow.usd_per_hour),
    }
