"""Expected times and costs of runs with losses and lifetimes: against exact formulas, and against simulated runs."""

import io
import itertools
import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rich.console import Console

from benchmarks.interruptions.cases import Case, billed_usd, expected, random_case
from benchmarks.interruptions.event_simulation import simulate_run
from benchmarks.interruptions.random_market import NUM_STRATA, times_to_loss
from tests.unit.profiles import SITE, layer, offer, profile, store_links
from zooid.core.errors import HopelessPlan, PlanError
from zooid.core.plans.plan import Limits, Plan, Prediction
from zooid.core.plans.profile import LayerProfile, Profile
from zooid.core.plans.search_result import Goal
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.offer import Offer
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.planner import Market, search, single
from zooid.planner.drafts import draft, evaluate
from zooid.predictor import World, directed_links, forecast, predict
from zooid.predictor.costs.usage import Checkpoints
from zooid.predictor.losses.availability import SeatRisk, mean_speed, rollbacks_per_s
from zooid.predictor.losses.handovers import handovers
from zooid.predictor.losses.loss_bill import PaidSeat, loss_usage
from zooid.predictor.losses.plan_losses import between_rollbacks_s
from zooid.predictor.losses.restarts import restarted
from zooid.predictor.losses.risky_prediction import poisson_p95
from zooid.predictor.losses.run_losses import CheckpointTiming, RunRisk, risky_run
from zooid.report import facts_in_words, prediction_page, prediction_tables

NUM_CASES, NUM_RUNS = 20, 40
SEED = 19
"""The draws of `python -m benchmarks.interruptions` differ every time."""


class TestRestarts:
    @settings(derandomize=True)
    @given(st.floats(1.0, 500.0), st.floats(1e-6, 0.01), st.floats(0.0, 200.0))
    def test_time_is_dalys(self, work_s: float, rate: float, recovery_s: float) -> None:
        recovery = restarted(recovery_s, rate).time
        daly_s = math.exp(rate * recovery_s) * math.expm1(rate * work_s) / rate
        assert restarted(work_s, rate, recovery).time.mean_s == pytest.approx(daly_s, rel=1e-6)

    @settings(derandomize=True)
    @given(st.floats(1.0, 500.0), st.floats(1e-6, 0.01), st.floats(0.0, 200.0))
    def test_work_to_do_again_may_differ_from_the_first_attempt(
        self, work_s: float, rate: float, more_s: float
    ) -> None:
        """With as much work again, both forms agree; with more, it takes longer."""
        same = restarted(work_s, rate, again_s=math.nextafter(work_s, math.inf))
        assert same.time == pytest.approx(restarted(work_s, rate).time, rel=1e-6)
        assert restarted(work_s, rate, again_s=work_s + more_s).time.mean_s >= same.time.mean_s * (1 - 1e-9)

    def test_moments_are_those_of_many_trials(self) -> None:
        numbers, work_s, again_s, pause_s, rate = random.Random(0), 100.0, 130.0, 20.0, 0.01
        times = []
        for _ in range(20_000):
            total_s, left_s = 0.0, work_s
            while (lost_s := numbers.expovariate(rate)) < left_s:
                total_s, left_s = total_s + lost_s, again_s
                while (lost_s := numbers.expovariate(rate)) < pause_s:
                    total_s += lost_s
                total_s += pause_s
            times.append(total_s + left_s)
        time = restarted(work_s, rate, restarted(pause_s, rate).time, again_s).time
        assert time.mean_s == pytest.approx(statistics.fmean(times), rel=0.02)
        assert math.sqrt(time.variance) == pytest.approx(statistics.stdev(times), rel=0.03)

    def test_work_that_is_never_done_is_hopeless(self) -> None:
        with pytest.raises(HopelessPlan, match="all members go back to a checkpoint every 1s, but 1m40s of work"):
            restarted(100.0, 1.0)


def seat(rate: float = 0.0, startup_s: float = 60.0, lifetime_s: float | None = None, work: float = 1.0) -> SeatRisk:
    return SeatRisk(losses_per_s=rate, startup_s=startup_s, lifetime_s=lifetime_s, work=work)


class TestAvailability:
    def test_without_replicas_every_loss_is_a_rollback(self) -> None:
        stages = [[seat(0.001)], [seat(0.002)]]
        assert rollbacks_per_s(stages, 10.0, survives_losses=True) == pytest.approx(0.003)

    def test_two_members_must_be_lost_within_one_start(self) -> None:
        """Either is lost at λ, while the other is missing a fraction 1 − q of the time."""
        held = math.exp(-0.001 * 70.0)
        rate = rollbacks_per_s([[seat(0.001)] * 2], 10.0, survives_losses=True)
        assert rate == pytest.approx(2 * 0.001 * held * (1 - held) / (1 - (1 - held) ** 2))
        assert rollbacks_per_s([[seat(0.001)] * 2], 10.0, survives_losses=False) == pytest.approx(0.002)

    def test_a_replica_takes_its_share_with_it(self) -> None:
        large, small = seat(0.001, work=0.75), seat(0.0, work=0.25)
        missing = 1 - math.exp(-0.001 * 60.0)
        assert mean_speed([[large, small]], 2, 0.0, 2.0) == pytest.approx(1 - 0.75 * missing)

    def test_pipelines_are_as_many_as_the_smallest_stage_has_members(self) -> None:
        """By trying all combinations of missing members."""
        stages, num_replicas, slowdown = [[seat(0.004)] * 3, [seat(0.002)] * 3], 3, 1.4
        held = [[each.held(0.0) for each in seats] for seats in stages]
        total = speed = 0.0
        for pattern in range(2**6):
            ups = [[bool(pattern >> (3 * stage + index) & 1) for index in range(3)] for stage in range(2)]
            probability = math.prod(
                held[stage][index] if ups[stage][index] else 1 - held[stage][index]
                for stage in range(2)
                for index in range(3)
            )
            number = min(map(sum, ups))
            if number:
                total += probability
                speed += probability * (1.0 if number == 3 else number / (2 * slowdown))
        assert mean_speed(stages, num_replicas, 0.0, slowdown) == pytest.approx(speed / total)


class TestHandovers:
    def test_members_that_are_never_lost_hand_over_together(self) -> None:
        """First after 0.7 · 900 = 630 s, then every 900 − 2 · 75 = 750 s; 75 s later successors have taken over."""
        stages = [[seat(lifetime_s=900.0)] * 4]
        for run_s, number in ((900.0, 0), (901.0, 1), (630 + 750 + 74.0, 1), (630 + 750 + 76.0, 2), (8100.0, 10)):
            counted = handovers(stages, run_s, step_s=10.0)
            assert (counted.by_seat, counted.num_changes) == ((number,) * 4, number), run_s

    def test_members_without_a_limit_hand_nothing_over(self) -> None:
        assert handovers([[seat()]], 1e6, 10.0).total == 0

    def test_a_lifetime_shorter_than_a_start_is_hopeless(self) -> None:
        with pytest.raises(HopelessPlan, match="members live for 1m, but a successor needs 1m30s to start and to take"):
            handovers([[seat(lifetime_s=60.0)]], 1000.0, 10.0)


class TestRehearsedLosses:
    def test_times_to_losses_are_exponential_and_stratified(self) -> None:
        drawn = list(itertools.islice(times_to_loss(random.Random(3)), 500 * NUM_STRATA))
        for limit in (0.1, 1.0, 3.0):
            assert statistics.fmean(time < limit for time in drawn) == pytest.approx(-math.expm1(-limit), abs=0.01)
        for first in range(0, len(drawn), NUM_STRATA):
            strata = sorted(int(-math.expm1(-time) * NUM_STRATA) for time in drawn[first : first + NUM_STRATA])
            assert strata == list(range(NUM_STRATA))


def risk(**changed: object) -> RunRisk:
    fields: dict[str, object] = {
        "stages": ((seat(0.0001),),),
        "num_replicas": 1,
        "survives_losses": True,
        "startup_s": 60.0,
        "num_steps": 1000,
        "step_s": 5.0,
        "slowdown": 1.0,
        "loss_pause_s": 1.0,
        "change_pause_s": 1.0,
        "checkpoints": CheckpointTiming(interval_s=300.0, pause_s=0.5, write_s=5.0, read_s=5.0),
    }
    return RunRisk(**(fields | changed))  # type: ignore[arg-type]


class TestRuns:
    def test_a_run_without_losses_takes_its_steps_and_checkpoints(self) -> None:
        run = risky_run(risk(stages=((seat(),),)))
        checkpoints_s = 17 * 0.5 + 5.0  # every 302.5 s on average, and the last one is written to its end
        assert run.run_s == pytest.approx(60 + 5000 + checkpoints_s)
        assert (run.num_losses, run.num_rollbacks, run.p95_s) == (0, 0, run.run_s)

    def test_more_losses_take_longer(self) -> None:
        times = [risky_run(risk(stages=((seat(rate),),))).run_s for rate in (0.0, 1e-6, 1e-5, 1e-4, 1e-3)]
        assert times == sorted(times)

    def test_a_copy_turns_rollbacks_into_pauses(self) -> None:
        alone, insured = risky_run(risk()), risky_run(risk(stages=((seat(0.0001), seat(0.0001, work=0.0)),)))
        assert insured.num_losses > 1.5 * alone.num_losses
        assert insured.num_rollbacks < 0.05 * alone.num_rollbacks
        assert insured.run_s < alone.run_s

    def test_predictions_are_what_random_runs_take_and_cost_on_average(self) -> None:
        """20 random cases; a few simulated runs of each leave an error of their own, which is allowed for."""
        seed = SEED
        print(f"seed {seed}")
        numbers = random.Random(seed)
        errors, usd_errors, late = [], [], 0
        for number in range(NUM_CASES):
            case = random_case(numbers)
            predicted = expected(case)
            run = predicted.run
            own_numbers = random.Random(f"{seed} {number}")
            runs = [simulate_run(case.risk, own_numbers) for _ in range(NUM_RUNS)]
            times = [each.run_s for each in runs]
            chance = statistics.stdev(times) / math.sqrt(NUM_RUNS) / statistics.fmean(times)
            errors.append(abs(run.run_s / statistics.fmean(times) - 1))
            bills = [billed_usd(case, each.lives_s) for each in runs]
            usd_errors.append(abs(predicted.members_usd / statistics.fmean(bills) - 1))
            assert errors[-1] <= 0.03 + 5 * chance, (seed, number, case.name)
            assert usd_errors[-1] <= 0.03 + 5 * chance, (seed, number, case.name)
            late += sum(time_s > run.p95_s for time_s in times)
            check_counts(case, run.num_losses, [each.num_losses for each in runs])
            check_counts(case, run.num_rollbacks, [each.num_rollbacks for each in runs])
            check_counts(case, run.handovers.total, [each.num_handovers for each in runs])
        assert statistics.fmean(errors) <= 0.02, seed
        assert statistics.fmean(usd_errors) <= 0.02, seed
        assert 0.01 <= late / (NUM_CASES * NUM_RUNS) <= 0.1, seed


def check_counts(case: Case, predicted: float, counted: list[int]) -> None:
    chance = (statistics.stdev(counted) + math.sqrt(predicted)) / math.sqrt(len(counted))
    assert abs(predicted - statistics.fmean(counted)) <= 0.06 * predicted + 5 * chance + 0.1, case.name


@settings(derandomize=True)
@given(st.floats(0.0, 400.0))
def test_at_most_5_of_100_runs_lose_more(mean: float) -> None:
    number = poisson_p95(mean)
    terms = [
        math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) if mean else float(k == 0) for k in range(number + 1)
    ]
    assert math.fsum(terms) >= 0.95 - 1e-9
    assert math.fsum(terms[:-1]) < 0.95


def long_profile(num_epochs: int = 100) -> Profile:
    """2000 samples a second alone: 8 s a step, 1000 steps."""
    return profile(
        [layer(0.5, parameter_bytes=4000), layer(0.5, parameter_bytes=4000)], store_links(1e6, 0.01), epochs=num_epochs
    )


def predicted(
    on: Offer, num_replicas: int = 1, rule: CheckpointRule = DEFAULT_RULE, *, insured: bool = False
) -> tuple[Plan, Prediction]:
    market = single(long_profile(), on)
    plan = market.plan(((0, 2),), (on,), num_replicas=num_replicas, grain_size=1, transport="store", insured=insured)
    return plan, predict(plan, market.world, rule)[0]


GOALS: tuple[Goal, Goal] = ("fastest", "cheapest")
RATED = offer(3.6, interruptions_per_hour=0.5, startup_s=60.0)


class TestPredictions:
    def test_nothing_changes_where_no_member_is_lost_or_runs_out_of_time(self) -> None:
        _, plain = predicted(offer(3.6, startup_s=60.0))
        assert plain.losses is None
        for changed in ({"lifetime_s": 1e5}, {"interruptions_per_hour": 0.0}):
            assert predicted(offer(3.6, startup_s=60.0, **changed))[1] == plain

    @pytest.mark.parametrize("num_replicas", [1, 2])
    @pytest.mark.parametrize("insured", [False, True])
    @pytest.mark.parametrize("lifetime_s", [None, 900.0])
    def test_terms_sum_to_time_and_cost(self, num_replicas: int, insured: bool, lifetime_s: float | None) -> None:
        _, without = predicted(offer(3.6, startup_s=60.0), num_replicas, insured=insured)
        _, prediction = predicted(structs.replace(RATED, lifetime_s=lifetime_s), num_replicas, insured=insured)
        losses = prediction.losses
        assert losses is not None
        assert math.fsum(term.seconds for term in losses.time_terms) == pytest.approx(prediction.run_s, rel=1e-12)
        assert math.fsum(term.usd for term in prediction.cost_terms) == pytest.approx(prediction.run_usd, rel=1e-12)
        assert all(term.seconds >= 0 for term in losses.time_terms)
        assert all(term.usd >= 0 for term in prediction.cost_terms)
        assert prediction.run_s > without.run_s
        assert prediction.run_usd > without.run_usd
        assert prediction.run_p95_s is not None
        assert prediction.run_p95_usd is not None
        assert prediction.run_p95_s >= prediction.run_s
        assert prediction.run_p95_usd >= prediction.run_usd
        assert (losses.num_handovers > 0) == (lifetime_s is not None)
        assert losses.num_losses == pytest.approx(
            max(num_replicas, 2 if insured else 1) * 0.5 * prediction.run_s / 3600, rel=1e-9
        )

    def test_a_spot_offer_without_a_rate_is_unknown_and_said_so(self) -> None:
        spot = offer(3.6, startup_s=60.0, market="spot")
        _, prediction = predicted(spot)
        assert prediction.losses is not None
        assert prediction.losses.unknown == (spot.name,)
        assert prediction.run_s == predicted(offer(3.6, startup_s=60.0))[1].run_s
        found = search(single(long_profile(), spot), Limits(max_members=1))
        said = f"How often members on {spot.name} are interrupted is unknown, so that such losses are not included"
        assert any(sentence.startswith(said) for sentence in found.reasons)

    def test_checkpoints_come_as_often_as_rollbacks_ask_for(self) -> None:
        plan, often = predicted(structs.replace(RATED, interruptions_per_hour=10.0))
        assert often.losses is not None
        assert often.losses.between_rollbacks_s == pytest.approx(360.0)
        assert often.losses.checkpoint_interval_s == 10.0, "the pause is so short that the least interval is best"
        assert between_rollbacks_s(plan) == pytest.approx(360.0)
        _, given = predicted(RATED, rule=CheckpointRule(every_s=77.0))
        assert given.losses is not None
        assert given.losses.checkpoint_interval_s == 77.0
        _, by_steps = predicted(RATED, rule=CheckpointRule(every_steps=3))
        assert by_steps.losses is not None
        assert by_steps.losses.checkpoint_interval_s == pytest.approx(2.5 * by_steps.step_s)

    def test_members_that_join_and_rollbacks_read_state_from_the_store(self) -> None:
        """Two seats of one stage: 3 joined each, and 2 rollbacks, with 100 bytes of state."""
        run = risky_run(risk())
        run = replace(run, num_rollbacks=2.0)
        seats = [PaidSeat(RATED, seat(), num_losses=2.0, num_handovers=1.0)] * 2
        checkpoints = Checkpoints(num_written=1, stage_bytes=(100.0,), weight_bytes=(50.0,))
        through_store = loss_usage(seats, 2, checkpoints, run, is_direct=False)
        moved = {(move.from_site, move.to_site): move.num_bytes for move in through_store.moves}
        assert moved == {(SITE, STORE_SITE): 600.0, (STORE_SITE, SITE): 600.0 + 400.0}
        direct = loss_usage(seats, 2, checkpoints, run, is_direct=True)
        moved = {(move.from_site, move.to_site): move.num_bytes for move in direct.moves}
        assert moved == {(SITE, SITE): 600.0, (STORE_SITE, SITE): 400.0}
        assert direct.num_puts < through_store.num_puts

    def test_replicas_make_rollbacks_rare(self) -> None:
        alone, doubled = predicted(RATED)[1].losses, predicted(RATED, 2)[1].losses
        assert alone is not None
        assert doubled is not None
        assert doubled.num_rollbacks < 0.1 * alone.num_rollbacks


class TestSearches:
    def test_deadline_and_budget_hold_with_losses(self) -> None:
        made = long_profile()
        prediction = search(single(made, RATED), Limits(max_members=1)).pick.prediction
        unlost = search(single(made, offer(3.6, startup_s=60.0)), Limits(max_members=1)).pick.prediction
        assert unlost.run_p95_s is not None
        assert prediction.run_p95_s is not None
        between_s = (unlost.run_p95_s + prediction.run_p95_s) / 2
        with pytest.raises(PlanError, match="no plan ends within"):
            search(single(made, RATED), Limits(max_members=1, deadline_s=between_s))
        assert unlost.run_p95_usd is not None
        assert prediction.run_p95_usd is not None
        between_usd = (unlost.run_p95_usd + prediction.run_p95_usd) / 2
        with pytest.raises(PlanError, match="no plan costs at most"):
            search(single(made, RATED), Limits(max_members=1, budget_usd=between_usd))

    def test_copies_are_taken_where_they_pay(self) -> None:
        """One replica is asked for. Alone, it goes back to a checkpoint with every loss, and waits for a start."""
        on = structs.replace(RATED, interruptions_per_hour=6.0, startup_s=150.0)
        limits = Limits(num_replicas=1, num_stages=1, max_members=2)
        fastest, cheapest = (search(single(long_profile(), on), limits, goal).pick for goal in GOALS)
        assert (fastest.insured, fastest.num_members) == (True, 2)
        assert (cheapest.insured, cheapest.num_members) == (False, 1)
        never = structs.replace(on, interruptions_per_hour=None)
        assert not search(single(long_profile(), never), limits, "fastest").pick.insured

    def test_a_market_where_no_run_ends_says_why(self) -> None:
        with pytest.raises(PlanError, match=r"members are lost 1.2s after their launch on average, but take 1m20s to"):
            search(single(long_profile(), structs.replace(RATED, interruptions_per_hour=3000.0)), Limits(max_members=1))
        with pytest.raises(PlanError, match="members live for 1m1s, but a successor needs"):
            search(single(long_profile(), structs.replace(RATED, lifetime_s=61.0)), Limits(max_members=2))

    def test_hopeless_candidates_do_not_stop_a_search(self) -> None:
        """On the cheapest offer, members are lost before they have started."""
        made = long_profile()
        bad = structs.replace(RATED, name="made.bad", interruptions_per_hour=3000.0, usd_per_hour=0.001)
        good = offer(3.6, name="made.good", startup_s=60.0)
        market = Market((bad, good), World({each.name: made for each in (bad, good)}, directed_links(made.links)))
        found = search(market, Limits(max_members=1), "cheapest")
        assert found.pick.member_offers[0].name == "made.good"
        assert {each.verdict for each in found.candidates if each.offers == ("made.bad",)} & {"hopeless"}

    @settings(deadline=None, max_examples=20, derandomize=True)
    @given(
        st.lists(
            st.builds(layer, st.floats(0.01, 2), parameter_bytes=st.sampled_from([4, 400])), min_size=1, max_size=2
        ),
        st.floats(0.1, 20.0),
        st.sampled_from([None, 200.0]),
        st.booleans(),
    )
    def test_losses_never_make_a_plan_better_than_its_lower_bounds(
        self, layers: list[LayerProfile], rate: float, lifetime_s: float | None, insured: bool
    ) -> None:
        on = offer(36.0, interruptions_per_hour=rate, lifetime_s=lifetime_s, startup_s=10.0)
        market = single(profile(layers, store_links(500.0, 0.01), epochs=5), on)
        for num_replicas in (1, 2):
            plan = market.plan(
                ((0, len(layers)),), (on,), num_replicas=num_replicas, grain_size=2, transport="store", insured=insured
            )
            made = draft(plan, market)
            try:
                prediction = evaluate(made).prediction
            except HopelessPlan:
                continue
            assert made.lower_bound[0] <= prediction.run_s * (1 + 1e-9)
            assert made.lower_bound[1] <= prediction.run_usd * (1 + 1e-9)


class TestReports:
    def shown(self, **changed: Any) -> tuple[str, str]:
        """The tables and the page of a forecast."""
        on = offer(3.6, startup_s=60.0, **changed)
        market = single(long_profile(), on)
        plan, _ = predicted(on)
        made = forecast(plan, market.world, prices="made up")
        console = Console(width=120, file=io.StringIO())
        for table in prediction_tables(made):
            console.print(table)
        for line in facts_in_words(made):
            console.print(line)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue(), prediction_page(made)

    def test_losses_and_hand_overs_have_a_table_and_a_panel(self) -> None:
        table, page = self.shown(interruptions_per_hour=0.5, lifetime_s=900.0)
        for said in ("waiting for replacements", "pauses of hand-overs", "hand-overs to successors", "p95"):
            assert said in table
        assert "Lost members and hand-overs" in page

    def test_where_none_are_known_nothing_is_shown(self) -> None:
        table, page = self.shown()
        assert "hand-overs" not in table
        assert "Lost members" not in page

    def test_an_unknown_rate_is_a_note(self) -> None:
        table, page = self.shown(market="spot")
        assert "note: How often members on made.offer are interrupted is unknown" in table
        assert "is unknown, so that such losses are not included" in page
