"""What a run does about its limits, against brute force in small worlds and against closed forms."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.spot_world import ON_DEMAND, SPOT, SimulatedRun, Trace, World, fleets
from zooid.coordinator.policy.avoidance import FIRST_PAUSE_S, MAX_PAUSE_S, Loss, avoided_until_s
from zooid.coordinator.policy.next_move import NextMove, decide, project
from zooid.coordinator.policy.situation import FleetOption, MarketOffer, Situation

GAP_S, STARTUP_S, STEP_S = 300.0, 100.0, 10.0
USD, SPOT_USD = 36.0, 9.0
"""On demand, a member costs a cent a second."""


def world(available: Sequence[int], num_steps: float, factor: float | None = None, **changed: float) -> World:
    """A world of one member, whose deadline is so many times what it takes on demand."""
    made = World(
        trace=Trace("drawn", GAP_S, (*available, *[0] * 40, 1)),
        num_steps=num_steps,
        step_s=STEP_S,
        usd_per_hour=USD,
        spot_usd_per_hour=SPOT_USD,
        startup_s=STARTUP_S,
        **changed,  # type: ignore[arg-type]
    )
    return made if factor is None else replace(made, deadline_s=made.on_demand_s * factor)


def best_by_brute_force(limited: World, length: int) -> float | None:
    """The lowest cost of all sequences of fleets that end in time; None if none does."""
    [spot, own] = [next(f for f in limited.options() if f.members == ((offer, 1),)) for offer in (SPOT, ON_DEMAND)]
    costs = []
    for sequence in itertools.product((None, spot, own), repeat=length):
        moves = iter(sequence)

        def follow(situation: Situation, options: Sequence[FleetOption], moves=moves) -> NextMove:  # type: ignore[no-untyped-def]
            fleet = next(moves, None)
            if fleet == spot and situation.offers[SPOT].num_available == 0:
                fleet = None
            return NextMove("switch", fleet, "as told")

        run = SimulatedRun(limited).play(follow)
        if run.holds_deadline:
            costs.append(run.usd)
    return min(costs, default=None)


class TestDeadlines:
    @given(
        available=st.lists(st.integers(0, 1), min_size=6, max_size=6),
        num_steps=st.integers(5, 80),
        factor=st.floats(1.0, 2.0),
    )
    @settings(max_examples=12, deadline=None)
    def test_it_holds_and_costs_no_less_than_the_best_of_all_sequences(
        self, available: list[int], num_steps: int, factor: float
    ) -> None:
        limited = world(available, num_steps, factor)
        run = SimulatedRun(limited).play()
        assert run.holds_deadline
        best_usd = best_by_brute_force(limited, 6)
        assert limited.least_usd <= run.usd + 1e-9
        if best_usd is not None:
            assert limited.least_usd <= best_usd + 1e-9 <= run.usd + 2e-9

    @given(
        available=st.lists(st.integers(0, 5), min_size=30, max_size=30),
        num_steps=st.integers(20, 500),
        factor=st.floats(1.0, 3.0),
        is_elastic=st.booleans(),
    )
    @settings(max_examples=40, deadline=None)
    def test_it_holds_with_several_members_whatever_the_trace(
        self, available: list[int], num_steps: int, factor: float, is_elastic: bool
    ) -> None:
        made = replace(world(available, num_steps, factor), is_elastic=is_elastic)
        made = replace(made, trace=replace(made.trace, available=(*available, *[0] * 60, 5)))
        run = SimulatedRun(made).play()
        assert run.holds_deadline
        assert run.usd >= made.least_usd - 1e-9

    def test_a_run_that_knows_the_future_can_do_no_better_where_spot_always_stays(self) -> None:
        limited = world([1] * 20, 300, 1.5)
        run = SimulatedRun(limited).play()
        assert run.usd == pytest.approx(limited.least_usd + STARTUP_S * SPOT_USD / 3600)

    def test_without_time_to_lose_it_takes_members_on_demand_at_once_and_keeps_them(self) -> None:
        limited = world([1] * 20, 300, 1.0)
        run = SimulatedRun(limited).play()
        assert run.holds_deadline
        assert run.usd == pytest.approx(limited.on_demand_usd)
        assert run.num_switches == 0

    def test_it_waits_for_spot_as_long_as_there_is_time(self) -> None:
        limited = world([0, 0, *[1] * 20], 100, 2.0, checkpoint_s=60.0)
        run = SimulatedRun(limited).play()
        assert run.holds_deadline
        assert run.usd == pytest.approx((STARTUP_S + 1000) * SPOT_USD / 3600)

    @given(available=st.lists(st.integers(0, 1), min_size=20, max_size=20), factor=st.floats(1.0, 2.0))
    @example(available=[0] * 20, factor=1.1)
    @settings(max_examples=40, deadline=None)
    def test_it_holds_if_steps_are_a_little_longer_than_predicted(self, available: list[int], factor: float) -> None:
        limited = world(available, 290, factor)

        def predicting_too_little(situation: Situation, options: Sequence[FleetOption]) -> NextMove:
            move = decide(situation, [replace(option, step_s=option.step_s / 1.04) for option in options])
            chosen = next((option for option in options if move.fleet and option.key == move.fleet.key), None)
            return replace(move, fleet=chosen)

        assert SimulatedRun(limited).play(predicting_too_little).holds_deadline

    def test_without_a_deadline_it_never_waits(self) -> None:
        run = SimulatedRun(world([0] * 5, 50)).play()
        assert run.is_complete
        assert run.usd == pytest.approx((STARTUP_S + 500) * USD / 3600)


class TestBudgets:
    @given(
        available=st.lists(st.integers(0, 1), min_size=15, max_size=15),
        num_steps=st.integers(50, 300),
        part=st.floats(0.2, 1.2),
    )
    @settings(max_examples=50, deadline=None)
    def test_it_holds_or_the_run_says_so_at_the_first_moment_at_which_nothing_can_hold_it(
        self, available: list[int], num_steps: int, part: float
    ) -> None:
        unlimited = world(available, num_steps, 2.0)
        limited = replace(unlimited, budget_usd=part * unlimited.on_demand_usd)
        assert limited.budget_usd is not None
        possible: list[tuple[float, bool]] = []

        def watched(situation: Situation, options: Sequence[FleetOption]) -> NextMove:
            possible.append((situation.now_s, self.is_possible(situation)))
            return decide(situation, options)

        run = SimulatedRun(limited).play(watched)
        first_s = next((at_s for at_s, is_possible in possible if not is_possible), None)
        assert run.warned_s == first_s
        assert run.is_complete or run.warned_s is not None or run.stopped
        assert run.usd <= limited.budget_usd + STARTUP_S * USD / 3600, "members hold it as soon as they train"
        if part >= 1.05:
            assert run.is_complete
            assert run.usd <= limited.budget_usd
            assert run.holds_deadline

    @staticmethod
    def is_possible(situation: Situation) -> bool:
        """Whether some single fleet from now on would hold both limits, if it could be had and were never lost."""
        running = {} if situation.current is None else dict(situation.current.members)
        assert situation.deadline_at_s is not None
        assert situation.budget_usd is not None
        for offer, price in ((SPOT, SPOT_USD), (ON_DEMAND, USD)):
            starts = offer not in running
            training_s = situation.num_steps_left * STEP_S
            usd = situation.spent_usd
            if starts:
                usd += STARTUP_S * price / 3600
                other = sum({SPOT: SPOT_USD, ON_DEMAND: USD}[name] * number for name, number in running.items())
                usd += STARTUP_S * other / 3600
                training_s = max(0.0, training_s - (STARTUP_S if running else 0.0))
            end_s = situation.now_s + starts * STARTUP_S + training_s
            usd += training_s * price / 3600
            if end_s <= situation.deadline_at_s + 1e-6 and usd <= situation.budget_usd * (1 + 1e-9):
                return True
        return False

    def test_cheap_members_stay_when_the_rest_could_be_paid_on_demand(self) -> None:
        made = replace(world([1] * 20, 300, 2.0), checkpoint_s=60.0)
        run = SimulatedRun(replace(made, budget_usd=0.5 * made.on_demand_usd)).play()
        assert run.holds_deadline
        assert run.usd == pytest.approx((STARTUP_S + 300 * STEP_S) * SPOT_USD / 3600)

    def test_what_would_hold_is_said(self) -> None:
        limited = replace(world([1] * 9, 300, 1.0), budget_usd=1.0)
        moves: list[NextMove] = []

        def watched(situation: Situation, options: Sequence[FleetOption]) -> NextMove:
            moves.append(decide(situation, options))
            return moves[-1]

        run = SimulatedRun(limited).play(watched)
        assert moves[0].warning == "the cheapest fleet, 1 × spot, costs $7.75 of $1.00"
        assert moves[0].would_hold == "a budget of $7.75 (1 × spot) would hold"
        assert run.stopped
        assert run.usd == 0, "what cannot hold its limits is not begun"


class TestMoves:
    def situation(self, **changed: object) -> Situation:
        offers = {
            "p3": MarketOffer(name="p3", usd_per_hour=12.0, num_available=4, startup_s=150.0),
            "g4": MarketOffer(name="g4", usd_per_hour=4.0, num_available=4, startup_s=150.0),
        }
        fields: dict[str, object] = {
            "now_s": 0.0,
            "look_s": 60.0,
            "num_steps_left": 1000.0,
            "spent_usd": 0.0,
            "current": None,
            "offers": offers,
        }
        return Situation(**fields | changed)  # type: ignore[arg-type]

    p3, g4 = FleetOption((("p3", 1),), 1.0), FleetOption((("g4", 1),), 2.5)

    def test_the_cheapest_fleet_is_taken_and_a_deadline_makes_it_a_faster_one(self) -> None:
        assert decide(self.situation(), [self.p3, self.g4]).fleet == self.g4
        assert decide(self.situation(deadline_at_s=2000.0), [self.p3, self.g4]).fleet == self.p3

    def test_a_slow_fleet_is_replaced_before_the_deadline_breaks_and_not_for_less_than_the_switch_costs(self) -> None:
        slow = replace(self.g4, step_s=3.0)
        kept = decide(self.situation(current=slow, deadline_at_s=3100.0), [self.p3, self.g4])
        assert (kept.kind, kept.fleet) == ("keep", slow)
        move = decide(self.situation(current=slow, deadline_at_s=2900.0), [self.p3, self.g4])
        assert (move.kind, move.fleet) == ("switch", self.p3)
        nearly_done = self.situation(current=self.p3, num_steps_left=100.0)
        assert decide(nearly_done, [self.p3, self.g4]).kind == "keep", "starting a cheaper one costs more than it saves"

    def test_a_preempted_offer_is_avoided_for_a_while_and_members_that_run_stay(self) -> None:
        losses = (Loss("g4", -10.0),)
        avoided = decide(self.situation(losses=losses), [self.p3, self.g4])
        assert avoided.fleet == self.p3
        stays = decide(self.situation(losses=losses, current=self.g4), [self.p3, self.g4])
        assert (stays.kind, stays.fleet) == ("keep", self.g4)
        later = decide(self.situation(losses=losses, now_s=FIRST_PAUSE_S), [self.p3, self.g4])
        assert later.fleet == self.g4

    def test_repeated_preemptions_are_avoided_for_longer(self) -> None:
        losses = [Loss("g4", 1000.0 * number) for number in range(9)]
        pauses = [avoided_until_s("g4", losses[: n + 1], 1000.0 * n) - 1000.0 * n for n in range(9)]
        assert pauses == [min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(9)]
        assert avoided_until_s("g4", losses, 1e6) <= 1e6, "old ones are forgotten"

    def test_every_fleet_of_the_simulated_market_divides_the_work_evenly(self) -> None:
        made = fleets(4, 10.0, True)
        assert len(made) == 14
        assert all(option.step_s * sum(option.counts.values()) == pytest.approx(40.0) for option in made)


class TestSwitching:
    """Without a search for savings, and with cuts."""

    CHEAP = FleetOption((("g4", 1),), 1.2)
    PRESENT = FleetOption((("p3", 1),), 1.0)

    def situation(self, **changed: object) -> Situation:
        offers = {
            "p3": MarketOffer(name="p3", usd_per_hour=36.0, num_available=1),
            "g4": MarketOffer(name="g4", usd_per_hour=3.6, num_available=4, startup_s=10.0),
        }
        fields: dict[str, object] = {
            "now_s": 0.0,
            "look_s": 10.0,
            "num_steps_left": 100.0,
            "spent_usd": 0.0,
            "current": self.PRESENT,
            "offers": offers,
            "deadline_at_s": 1000.0,
        }
        return Situation(**fields | changed)  # type: ignore[arg-type]

    def test_a_fleet_that_holds_the_limits_is_kept_unless_savings_are_sought(self) -> None:
        assert decide(self.situation(), [self.CHEAP]).kind == "switch"
        assert decide(self.situation(seeks_savings=False), [self.CHEAP]).kind == "keep"

    def test_one_that_breaks_a_limit_is_left_anyway(self) -> None:
        move = decide(self.situation(seeks_savings=False, budget_usd=0.5), [self.CHEAP])
        assert (move.kind, move.fleet) == ("switch", self.CHEAP)

    def test_a_fleet_with_other_cuts_keeps_nobody(self) -> None:
        situation = self.situation(current=FleetOption((("g4", 1),), 1.0))
        for cuts, startup_s in (("", 0.0), ("layers 0:3, 3:7", 10.0)):
            option = FleetOption((("g4", 1),), 1.0, cuts)
            assert project(situation, option).end_at_s == pytest.approx(100.0), "the present one trains meanwhile"
            assert situation.startup_s(option, situation.kept_by(option)) == startup_s

    def test_a_rehearsal_in_scaled_time_avoids_an_offer_for_less_long(self) -> None:
        lost = (Loss("g4", -30.0),)
        assert self.situation(losses=lost).is_avoided("g4")
        assert not self.situation(losses=lost, time_factor=20.0).is_avoided("g4")
