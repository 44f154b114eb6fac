"""What a run does with the policy's answers, with a planner, a market and changes that are imagined."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec import structs

from tests.unit.fleet_plans import a_fleet
from zooid.coordinator.policy.avoidance import FIRST_PAUSE_S
from zooid.coordinator.runs.fleet_options import FleetMarket, keeps_members, with_present_first
from zooid.coordinator.runs.fleet_steering import FleetSteering
from zooid.coordinator.runs.limit_guard import LimitGuard
from zooid.coordinator.runs.roster_changes import RosterChanges, WantedChange
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.coordinator.runs.startup_times import StartUpTimes
from zooid.coordinator.runs.steering_rules import earlier_losses, steering_of
from zooid.core.errors import PlanError
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.allowance import EXIT_S
from zooid.core.runs.events import (
    Event,
    FleetChosen,
    LimitsEndangered,
    MemberExited,
    PriceChanged,
    RosterChanged,
    StepCommitted,
)
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.steering import Steering
from zooid.store import EventWriter, open_store

SPOT, OWN = "spot.p3", "g3"


@dataclass
class Changes:
    """As much of the planned changes of a run as steering uses."""

    queue: list[WantedChange] = field(default_factory=list)
    hired: list[Plan] = field(default_factory=list)
    withdrawn: int = 0
    is_blocked: bool = False
    startups: StartUpTimes = field(default_factory=StartUpTimes)

    @property
    def wanted(self) -> list[WantedChange]:
        return self.queue

    def hire(self, plan: Plan, name: str, cause: str) -> WantedChange:
        self.hired.append(plan)
        wanted = WantedChange(cause, lambda roster: ((), ()), name)
        self.queue.append(wanted)
        return wanted

    def withdraw(self, wanted: WantedChange) -> bool:
        self.queue.remove(wanted)
        self.withdrawn += 1
        return True


@dataclass
class Scene:
    """A run of a hundred steps, of which twenty are done, one a second."""

    present: list[str]
    plan: Plan
    found: Sequence[Plan] = ()
    """What the planner finds."""
    fleets: Sequence[Plan] = ()
    deadline_s: float | None = None
    budget_usd: float | None = None
    seeks_savings: bool = False
    room: dict[str, int] = field(default_factory=dict)
    """How many more members can be had of an offer; any number if it is not there."""
    asked: list[tuple[dict[str, int], dict[str, int]]] = field(default_factory=list)
    """What the planner was asked: present members, and quotas."""
    told: list[Event] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    num_refills: int = 0

    def steer(self) -> FleetSteering:
        now_s = time.time()
        claim = RunClaim(
            run="run-7",
            nonce="00",
            deadline_at_s=None if self.deadline_s is None else now_s + self.deadline_s,
            budget_usd=self.budget_usd,
        )
        self.meter = RunMeter()
        writer = cast(EventWriter, self)
        self.guard = LimitGuard(open_store("memory://steering"), writer, self.meter, claim, 0)
        self.guard.begin(self.plan)
        for step in range(20):
            at_s = now_s - 20.0 + step
            self.guard.take(StepCommitted(at_s=at_s, step=step, epoch=0, loss=1.0, num_samples=4, step_s=1.0))
        offers = {offer.name: offer for plan in (self.plan, *self.found, *self.fleets) for offer in plan.offers}
        rules = Steering(offers=tuple(offers.values()), max_members=8, seeks_savings=self.seeks_savings, look_s=0.001)
        return FleetSteering(
            market=FleetMarket(rules, self.has_room, self.meter.usd_per_hour),
            claim=claim,
            guard=self.guard,
            changes=cast(RosterChanges, self.changes),
            present=lambda: [offers[name] for name in self.present],
            read_bill=lambda: self.meter.read(time.time()),
            find_fleets=self.find,
            write_plan=lambda plan: "fleet-1",
            refill=self.refill,
            tell=self.told.append,
            plan=self.plan,
            fleets=list(self.fleets),
            seeks_savings=self.seeks_savings,
        )

    def write(self, event: Event) -> None:
        self.told.append(event)

    def has_room(self, num_members: int, offer: str) -> bool:
        return num_members <= self.room.get(offer, 99)

    def find(
        self, steering: Steering, present: Mapping[str, int], quotas: Mapping[str, int], step: int
    ) -> Sequence[Plan]:
        assert step == 20
        self.asked.append((dict(present), dict(quotas)))
        if not self.found:
            raise PlanError("nothing can be had")
        return self.found

    def refill(self) -> None:
        self.num_refills += 1

    @property
    def chosen(self) -> list[FleetChosen]:
        return [event for event in self.told if isinstance(event, FleetChosen)]


def exited(member: str, offer: str) -> MemberExited:
    return MemberExited(at_s=time.time(), member=member, exit_text="was killed", offer=offer)


def poll_until(steering: FleetSteering, is_reached: Callable[[], bool]) -> None:
    """The planner has a thread of its own."""
    deadline_s = time.monotonic() + 20.0
    while not is_reached():
        assert time.monotonic() < deadline_s
        steering.poll()
        time.sleep(0.002)


def lose(scene: Scene, member: str, offer: str) -> FleetSteering:
    """A member is killed, and the others go on without it."""
    steering = scene.steer()
    scene.present.remove(offer)
    steering.note_exit(exited(member, offer))
    scene.guard.take(
        RosterChanged(at_s=time.time(), change=1, members=("r0s0",), step=20, ruling="unfinished", wall_s=0.1)
    )
    steering.note_fewer_members()
    return steering


def test_a_preempted_offer_is_not_used_again_soon_and_the_survivor_stays() -> None:
    """Of two members on spot, one is lost. At half the speed, 160 s are needed, and 100 s are left."""
    mixed = a_fleet(OWN, SPOT, OWN, step_s=1.0)
    scene = Scene([SPOT, SPOT], a_fleet(SPOT, SPOT, step_s=1.0), [mixed, a_fleet(SPOT, step_s=2.0)], deadline_s=100.0)
    steering = lose(scene, "r1s0", SPOT)
    assert steering.avoids(SPOT)
    poll_until(steering, lambda: bool(scene.chosen))
    assert scene.asked == [({SPOT: 1}, {SPOT: 1, OWN: 8})], "no new member on spot may be planned"
    [chosen] = scene.chosen
    assert (chosen.fleet, chosen.reason) == (f"2 × {OWN} and 1 × {SPOT}", "r1s0 was lost")
    [hired] = scene.changes.hired
    assert hired.replica_offers == (SPOT, OWN, OWN), "whoever stays keeps its rank"
    assert scene.num_refills == 0


def test_the_chosen_fleet_is_followed_when_it_trains() -> None:
    mixed = a_fleet(SPOT, OWN, OWN, step_s=1.0)
    scene = Scene([SPOT, SPOT], a_fleet(SPOT, SPOT, step_s=1.0), [mixed], deadline_s=100.0)
    steering = lose(scene, "r1s0", SPOT)
    poll_until(steering, lambda: bool(scene.chosen))
    assert steering.plan == scene.plan
    scene.changes.queue.clear()
    scene.present += [OWN, OWN]
    steering.poll()
    assert not steering.is_switching
    assert (steering.plan.replica_offers, steering.plan_name) == ((SPOT, OWN, OWN), "fleet-1")


def test_a_lost_member_on_demand_is_replaced_on_its_offer_as_in_any_run() -> None:
    scene = Scene([OWN, OWN], a_fleet(OWN, OWN), [a_fleet(OWN)], deadline_s=1000.0)
    steering = lose(scene, "r1s0", OWN)
    assert not steering.avoids(OWN)
    poll_until(steering, lambda: scene.num_refills > 0)
    assert scene.chosen == []


def test_an_offer_that_is_sold_out_is_left_to_the_policy() -> None:
    scene = Scene([OWN, OWN], a_fleet(OWN, OWN), [a_fleet(OWN, "dear", "dear")], deadline_s=100.0, room={OWN: 0})
    steering = lose(scene, "r1s0", OWN)
    poll_until(steering, lambda: bool(scene.chosen))
    assert scene.chosen[0].fleet == f"2 × dear and 1 × {OWN}"
    assert scene.asked[0][1] == {OWN: 1, "dear": 8}


def test_after_a_pause_a_preempted_offer_may_be_used_again() -> None:
    scene = Scene([SPOT, SPOT], a_fleet(SPOT, SPOT), deadline_s=1000.0)
    steering = lose(scene, "r1s0", SPOT)
    steering.losses = [structs_at(steering, -FIRST_PAUSE_S - 1.0)]
    assert not steering.avoids(SPOT)
    steering.losses = [structs_at(steering, -10.0)]
    assert steering.avoids(SPOT)
    fast_clock = structs.replace(steering.steering, time_factor=60.0)
    steering.market = FleetMarket(fast_clock, scene.has_room, scene.meter.usd_per_hour)
    assert not steering.avoids(SPOT), "in a rehearsal at 60 times the speed"


def structs_at(steering: FleetSteering, ago_s: float) -> Any:
    loss = steering.losses[-1]
    return type(loss)(loss.offer, time.time() + ago_s)


def test_members_that_are_lost_together_are_one_preemption() -> None:
    scene = Scene([SPOT, SPOT, SPOT], a_fleet(SPOT, SPOT, SPOT))
    steering = scene.steer()
    steering.market = FleetMarket(structs.replace(steering.steering, look_s=10.0), scene.has_room, lambda offer: 1.0)
    for member in ("r0s0", "r1s0"):
        steering.note_exit(exited(member, SPOT))
    assert len({loss.at_s for loss in steering.losses}) == 1


def test_a_price_that_breaks_the_budget_leads_to_a_cheaper_fleet() -> None:
    """80 steps at a cent a second cost 80 cents, and 60 are left."""
    cheap = a_fleet(OWN, step_s=1.5, usd_per_hour=9.0)
    scene = Scene([SPOT], a_fleet(SPOT, step_s=1.0, usd_per_hour=36.0), [cheap], budget_usd=0.6)
    steering = scene.steer()
    steering.take(PriceChanged(at_s=time.time(), offer=SPOT, usd_per_hour=36.0, before_usd_per_hour=12.0))
    poll_until(steering, lambda: bool(scene.chosen))
    assert scene.chosen[0].fleet == f"1 × {OWN}"
    assert "price of spot.p3 has changed" in scene.chosen[0].reason
    assert scene.chosen[0].usd == pytest.approx((80 * 1.5 + EXIT_S + 1.0) * 9.0 / 3600, rel=0.001)


def test_a_fleet_that_holds_is_kept_unless_the_run_seeks_savings() -> None:
    plan, cheap = a_fleet(OWN, OWN, usd_per_hour=36.0), a_fleet("cheap", step_s=1.1, usd_per_hour=9.0)
    for seeks_savings in (False, True):
        scene = Scene([OWN, OWN], plan, fleets=[cheap], deadline_s=1000.0, seeks_savings=seeks_savings)
        steering = scene.steer()
        for _ in range(5):
            time.sleep(0.002)
            steering.poll()
        assert [event.fleet for event in scene.chosen] == (["1 × cheap"] if seeks_savings else [])
        assert scene.asked == [], "nothing has happened that the planner should know"


def test_it_is_told_once_that_nothing_can_hold_the_limits() -> None:
    scene = Scene([OWN], a_fleet(OWN), deadline_s=50.0)
    steering = scene.steer()
    for _ in range(5):
        time.sleep(0.002)
        steering.poll()
    [warning] = [event for event in scene.told if isinstance(event, LimitsEndangered)]
    assert f"the fastest fleet, 1 × {OWN}, ends 32s after the deadline" in warning.reason
    assert "would hold" in warning.would_hold


def test_a_switch_is_given_up_for_a_better_one_if_a_member_is_lost_meanwhile() -> None:
    first, second = a_fleet("dear", "dear"), a_fleet("other", "other")
    scene = Scene([OWN, OWN], a_fleet(OWN, OWN), [first], deadline_s=100.0, room={OWN: 0})
    steering = lose(scene, "r1s0", OWN)
    poll_until(steering, lambda: bool(scene.chosen))
    assert steering.is_switching
    for _ in range(3):
        time.sleep(0.002)
        steering.poll()
    assert len(scene.chosen) == 1, "nobody decides anew while the new members start"
    steering.take(PriceChanged(at_s=time.time(), offer="dear", usd_per_hour=37.0, before_usd_per_hour=36.0))
    for _ in range(20):
        time.sleep(0.002)
        steering.poll()
    assert len(scene.asked) == 2, "the planner is asked once for each thing that happens"
    steering.fleets.clear()
    scene.found, scene.room = [second], {OWN: 0, "dear": 0}
    steering.market = FleetMarket(
        structs.replace(steering.steering, offers=(*steering.steering.offers, *second.offers)),
        scene.has_room,
        scene.meter.usd_per_hour,
    )
    steering.note_exit(exited("r0s0-1", "dear"))
    steering.note_fewer_members()
    poll_until(steering, lambda: len(scene.chosen) > 1)
    assert scene.changes.withdrawn == 1
    assert scene.chosen[1].fleet == "2 × other"


class TestRules:
    def test_a_run_without_limits_or_with_nothing_else_to_do_is_not_steered(self) -> None:
        store = open_store("memory://rules")
        limited = RunClaim(run="run-7", nonce="00", budget_usd=5.0)
        plan = structs.replace(a_fleet(OWN), transport="tcp")
        assert steering_of(store, RunClaim(run="run-7", nonce="00"), plan, [plan]) is None
        assert steering_of(store, limited, plan, []) is None
        assert steering_of(store, limited, structs.replace(plan, transport="gloo"), [plan]) is None
        rules = steering_of(store, limited, plan, [a_fleet(OWN, OWN)])
        assert rules is not None
        assert (rules.max_members, rules.asks_planner, rules.seeks_savings) == (2, False, False)

    def test_rules_in_the_folder_count(self) -> None:
        store, plan = open_store("memory://given-rules"), a_fleet(OWN)
        given = Steering(offers=plan.offers, seeks_savings=True)
        store.put(keys.STEERING, encode_record(given))
        assert steering_of(store, RunClaim(run="run-7", nonce="00"), plan, []) == given

    def test_a_successor_knows_what_was_preempted_before(self) -> None:
        store = open_store("memory://losses")
        rules = Steering(offers=a_fleet(SPOT, OWN).offers)
        with EventWriter(store, keys.COORDINATOR) as writer:
            writer.write(MemberExited(at_s=5.0, member="r0s0", exit_text="was killed", offer=SPOT))
            writer.write(MemberExited(at_s=6.0, member="r1s0", exit_text="was killed", offer=OWN))
        assert [(loss.offer, loss.at_s) for loss in earlier_losses(store, rules)] == [(SPOT, 5.0)]


def test_only_members_with_the_whole_model_stay() -> None:
    plan, other = a_fleet(OWN, OWN), a_fleet(SPOT)
    assert keeps_members(plan, other)
    halves = tuple(structs.replace(plan.stages[0], first_layer=a, end_layer=b) for a, b in ((0, 3), (3, 7)))
    assert not keeps_members(plan, structs.replace(other, stages=halves, offers=plan.offers + other.offers))
    mixed = a_fleet(OWN, SPOT, OWN, SPOT, shares=(1, 1, 1, 1))
    assert with_present_first(mixed, {SPOT: 1}).replica_offers == (SPOT, OWN, OWN, SPOT)
    assert with_present_first(plan, {OWN: 1}) is plan
