"""Computing takes its planned time: a member sleeps the rest, makes up for delays, and says if it cannot keep up."""

import pytest

from zooid.core.abort import Abort
from zooid.core.errors import CommAborted
from zooid.worker.step import pacing
from zooid.worker.step.pacing import Pacer

OVERSLEPT_S = 0.001


class Clock:
    """Time that passes only when somebody computes or sleeps; every sleep ends a little late."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def compute(self, seconds: float) -> None:
        self.now_s += seconds


class SleepyAbort(Abort):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.sleeps_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps_s.append(seconds)
        self._clock.now_s += seconds + OVERSLEPT_S
        self.check()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pacing, "time", made)
    return made


def test_the_rest_is_slept(clock: Clock) -> None:
    abort = SleepyAbort(clock)
    with Pacer((), abort).taking(0.1):
        clock.compute(0.03)
    assert abort.sleeps_s == pytest.approx([0.07])


def test_sleeps_that_end_late_do_not_add_up(clock: Clock) -> None:
    pacer = Pacer((), SleepyAbort(clock))
    for _ in range(50):
        with pacer.taking(0.1):
            clock.compute(0.03)
    assert clock.now_s - 100.0 == pytest.approx(5.0 + OVERSLEPT_S)


def test_moments_within_an_action_are_kept(clock: Clock) -> None:
    moments: list[float] = []
    with Pacer((), SleepyAbort(clock)).taking(0.1) as sleep_until:
        clock.compute(0.04)
        for fraction in (0.25, 0.5, 0.75):  # the first has passed while it computed
            sleep_until(fraction)
            moments.append(clock.now_s - 100.0)
    assert moments == pytest.approx([0.04, 0.05 + OVERSLEPT_S, 0.075 + OVERSLEPT_S])


def test_a_member_that_cannot_keep_up_says_so_once(clock: Clock) -> None:
    told: list[tuple[float, float]] = []
    pacer = Pacer((), SleepyAbort(clock), lambda planned_s, computed_s: told.append((planned_s, computed_s)))
    for _ in range(6):
        for _ in range(4):
            with pacer.taking(0.025):
                clock.compute(0.05)
        pacer.end_step()
    assert told == [pytest.approx((0.1, 0.205))], "it makes up for at most a twentieth of the step before"


def test_a_delay_now_and_then_is_made_up_for_in_silence(clock: Clock) -> None:
    told: list[float] = []
    pacer = Pacer((), SleepyAbort(clock), lambda planned_s, computed_s: told.append(computed_s))
    for step in range(12):
        for _ in range(4):
            with pacer.taking(0.025):
                clock.compute(0.03 if step % 3 == 0 else 0.01)
        pacer.end_step()
    assert told == []


def test_a_long_delay_is_not_made_up_for(clock: Clock) -> None:
    """A machine that stood still for seconds must not let its members race afterwards."""
    pacer = Pacer((), SleepyAbort(clock))
    with pacer.taking(0.1):
        clock.compute(5.0)
    pacer.end_step()
    begin_s = clock.now_s
    with pacer.taking(0.1):
        clock.compute(0.01)
    assert clock.now_s - begin_s == pytest.approx(0.095 + OVERSLEPT_S)


def test_an_abort_ends_the_sleep() -> None:
    abort = Abort()
    abort.set("the run ends")
    with pytest.raises(CommAborted), Pacer((), abort).taking(60.0):
        pass
