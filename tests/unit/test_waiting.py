"""How long a message lies in the store before its reader asks for it, by the rules that readers follow."""

import random

import pytest

from zooid.schedule.arrival_times import LINE_MISSES, UNKNOWN, ArrivalTimes, line_delay, pause_before_arrival
from zooid.schedule.polling_rules import Lags, impatient_pause, pause_after_miss, settled_delay

LATENCY_S = 0.005


def mean_delay_s(came_s: float, urgent: bool, num_steps: int = 300) -> float:
    """Of messages that come so long after they are expected, give or take 2 %, once readers have learned that."""
    generator = random.Random(1)
    lags = Lags()
    delays = []
    for _ in range(num_steps):
        stored_s = came_s * generator.gauss(1, 0.02)
        lag_s = look_s = lags.of("edge")
        has_missed = False
        while look_s + LATENCY_S / 2 < stored_s:
            waited_s = look_s + LATENCY_S
            pause_s = pause_after_miss(waited_s, 0.0)
            look_s += LATENCY_S + (min(pause_s, impatient_pause(waited_s, 0.0, lag_s)) if urgent else pause_s)
            has_missed = True
        delays.append(look_s - stored_s)
        if has_missed:
            lags.came_late("edge", look_s)
        else:
            lags.was_there("edge")
    return sum(delays[num_steps // 3 :]) / len(delays[num_steps // 3 :])


def line_delays_and_misses(came_s: float, num_steps: int = 300) -> tuple[float, float]:
    """The same of messages that come one after the other, which are polled for by other rules; and looks too early."""
    generator = random.Random(1)
    times = ArrivalTimes()
    delays, num_misses = [], 0
    for step in range(num_steps):
        stored_s = came_s * generator.gauss(1, 0.02)
        arrival = times.usual.get(0, UNKNOWN)
        look_s = first_s = arrival.early_s
        while look_s + LATENCY_S / 2 < stored_s:
            num_misses += step >= num_steps // 3
            look_s += LATENCY_S + pause_before_arrival(look_s + LATENCY_S, arrival)
        delays.append(look_s - stored_s)
        times.came({0: stored_s}, at_first_poll=look_s == first_s)
    settled = delays[num_steps // 3 :]
    return sum(settled) / len(settled), num_misses / len(settled)


@pytest.mark.parametrize("came_s", [0.05, 0.2, 0.5, 1.0, 2.0, 5.0])
def test_the_delay_of_a_line_is_what_readers_come_to(came_s: float) -> None:
    delay_s, num_misses = line_delays_and_misses(came_s)
    assert line_delay(came_s) == pytest.approx(delay_s, rel=0.35, abs=0.004)
    assert LINE_MISSES / 2 < num_misses < 3 * LINE_MISSES, "of a pipeline, most come sooner after one another"


@pytest.mark.parametrize("urgent", [True, False])
@pytest.mark.parametrize("came_s", [0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
def test_the_settled_delay_is_what_readers_come_to(came_s: float, urgent: bool) -> None:
    assert settled_delay(came_s, urgent) == pytest.approx(mean_delay_s(came_s, urgent), rel=0.35, abs=0.004)


def test_what_is_there_is_taken_at_once() -> None:
    assert settled_delay(-1.0, True) == settled_delay(0.0, False) == 0.0
    lags = Lags()
    assert lags.of("edge") == 0.0


def test_one_that_stumbled_is_soon_forgotten() -> None:
    lags = Lags()
    for _ in range(20):
        lags.came_late("edge", 0.01)
    usual_s = lags.of("edge")
    lags.came_late("edge", 30.0)
    assert lags.of("edge") < 0.1, "nobody waits for half a minute the next time"
    for _ in range(8):
        lags.was_there("edge")
    assert lags.of("edge") <= usual_s


def test_what_comes_late_every_time_is_asked_for_late() -> None:
    lags = Lags()
    for _ in range(15):
        lags.came_late("edge", 2.0)
    assert 1.5 < lags.of("edge") <= 2.0
