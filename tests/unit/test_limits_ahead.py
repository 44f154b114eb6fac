"""The pace of a run, what it says about the end, and when a member must stop."""

import math
import random
import statistics
import time
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_records import a_plan
from zooid.coordinator.policy.outlook import danger, outlook
from zooid.coordinator.runs.limit_guard import LimitGuard
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.resources.tariff import Tariff
from zooid.core.runs.allowance import Allowance
from zooid.core.runs.events import BatchChanged, Event, LimitsEndangered, StepCommitted
from zooid.core.runs.spec import RunClaim
from zooid.schedule.step_window import WINDOW_S, StepWindow
from zooid.store import EventWriter, open_store


def window_of(*step_times: float, begin_s: float = 1000.0) -> StepWindow:
    window = StepWindow()
    now_s = begin_s
    window.add(now_s)
    for step_s in step_times:
        now_s += step_s
        window.add(now_s)
    return window


def an_allowance(deadline_at_s: float | None = None, budget_usd: float | None = None) -> Allowance:
    """Two members cost a cent a second each since 0, one of them in whole minutes, and the rest a tenth of a cent."""
    tariffs = [
        Tariff(started_at_s=0.0, usd_per_hour=36.0, billing_grain_s=grain_s, billing_minimum_s=0.0)
        for grain_s in (0.001, 60.0)
    ]
    return Allowance(
        at_s=100.0,
        deadline_at_s=deadline_at_s,
        budget_usd=budget_usd,
        tariffs=tuple(tariffs),
        other_usd=5.0,
        other_usd_per_s=0.001,
    )


class TestWindow:
    def test_the_mean_and_its_bounds_are_those_of_a_normal_distribution(self) -> None:
        times = [1.0, 2.0, 3.0, 2.0]
        window = window_of(*times)
        half_s = 1.96 * statistics.stdev(times) / math.sqrt(4)
        assert window.mean_s == pytest.approx(2.0)
        assert (window.fastest_mean_s, window.slowest_mean_s) == pytest.approx((2.0 - half_s, 2.0 + half_s))
        assert window.next_step_s == pytest.approx(2.0 + 1.96 * statistics.stdev(times))

    def test_nothing_is_known_before_the_second_step(self) -> None:
        window = window_of()
        assert (window.mean_s, window.fastest_mean_s, window.next_step_s) == (None, None, None)

    def test_old_steps_are_forgotten_and_repeated_ones_left_out(self) -> None:
        window = window_of(*[10.0] * 60, *[1.0] * 300)
        assert window.mean_s == pytest.approx(1.0, rel=0.1)
        before = window.num_intervals
        window.add(0.0)
        assert window.num_intervals == before <= WINDOW_S + 1

    def test_the_true_mean_is_within_the_bounds_in_95_of_100_cases(self) -> None:
        generator = random.Random(7)
        num_within = 0
        for _ in range(400):
            window = window_of(*[generator.gauss(2.0, 0.3) for _ in range(50)])
            assert window.fastest_mean_s is not None
            assert window.slowest_mean_s is not None
            num_within += window.fastest_mean_s <= 2.0 <= window.slowest_mean_s
        assert 0.9 <= num_within / 400 <= 0.99


class TestAllowance:
    def test_the_cost_at_a_time_counts_members_in_their_billing_grains(self) -> None:
        assert an_allowance().usd_at(150.0) == pytest.approx(1.5 + 1.8 + 5.0 + 0.05)

    @given(deadline_s=st.floats(0, 500), now_s=st.floats(0, 500), step_s=st.floats(0, 10), closing_s=st.floats(0, 10))
    def test_a_step_begins_only_if_it_and_the_last_checkpoint_end_in_time(
        self, deadline_s: float, now_s: float, step_s: float, closing_s: float
    ) -> None:
        reason = an_allowance(deadline_s).reason_to_stop(now_s, step_s, closing_s)
        assert bool(reason) == (now_s + step_s + closing_s > deadline_s)

    @given(budget_usd=st.floats(0, 30), now_s=st.floats(100, 500), step_s=st.floats(0, 10), closing_s=st.floats(0, 10))
    def test_a_step_begins_only_if_it_and_the_last_checkpoint_can_be_paid(
        self, budget_usd: float, now_s: float, step_s: float, closing_s: float
    ) -> None:
        allowance = an_allowance(budget_usd=budget_usd)
        reason = allowance.reason_to_stop(now_s, step_s, closing_s)
        assert bool(reason) == (allowance.usd_at(now_s + step_s + closing_s) > budget_usd)


class TestOutlook:
    def test_a_steady_run_is_extrapolated(self) -> None:
        ahead = outlook(window_of(*[2.0] * 20), 100, an_allowance(), 1040.0)
        assert ahead is not None
        assert (ahead.end_at_s, ahead.soonest_end_at_s) == pytest.approx((1240.0, 1240.0))
        assert ahead.usd == pytest.approx(an_allowance().usd_at(1240.0))

    def test_a_run_is_in_danger_only_if_the_favourable_bound_breaks_a_limit(self) -> None:
        """A step of two took a little long; the mean is beyond the deadline, and its bound is not."""
        window = window_of(*[2.0, 2.2] * 10)
        ahead = outlook(window, 100, an_allowance(), 1042.0)
        assert ahead is not None
        assert ahead.soonest_end_at_s < 1250.0 < ahead.end_at_s
        assert danger(ahead, an_allowance(1250.0)) == ("", "")
        reason, would_hold = danger(ahead, an_allowance(1240.0, 20.0))
        assert (
            reason
            == "at its present pace the run will end 12s after its deadline and cost $31.27, and its budget is $20.00"
        )
        assert would_hold == "a deadline that is 12s later and a budget of $31.27 would hold"

    def test_few_steps_say_nothing(self) -> None:
        assert outlook(window_of(1.0, 1.0), 100, an_allowance(), 1002.0) is None


class Told:
    """As much of a writer of events as a guard uses."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)


@pytest.mark.parametrize(("num_steps", "is_endangered"), [(None, True), (60, False), (95, True)])
def test_a_larger_batch_leaves_fewer_steps_until_the_deadline(num_steps: int | None, is_endangered: bool) -> None:
    """After 20 of 100 steps of a second, 60 s are left. A larger batch may need fewer steps for the rest."""
    now_s = time.time()
    claim = RunClaim(run="run-7", job_file="job.py", nonce="00", deadline_at_s=now_s + 60.0)
    meter, told = RunMeter(), Told()
    guard = LimitGuard(open_store("memory://guard"), cast(EventWriter, told), meter, claim, 0)
    guard.begin(a_plan(predicted=None, unpredicted_steps=100))
    for step in range(20):
        event = StepCommitted(
            at_s=now_s - 20.0 + step, step=step, epoch=0, loss=1.0, num_samples=64, step_s=1.0, gradient_norm=1.0
        )
        meter.take(event)
        guard.take(event)
    if num_steps is not None:
        guard.take(BatchChanged(at_s=now_s, step=20, batch_size=128, rate_factor=0.75, num_steps=num_steps))
    guard.judge(meter.read(now_s))
    assert [isinstance(event, LimitsEndangered) for event in told.events] == [True] * is_endangered
