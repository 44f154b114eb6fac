"""What is queued runs by priority, side by side while it is small, and in twos when it is large."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from zooid.comm.store.request_queue import RequestQueue
from zooid.schedule.transfer_lists import FlightWindow

pytestmark = pytest.mark.timeout(20)


def new_queue(max_threads: int = 8, min_at_once: int = 2, max_bytes: int = 1000) -> RequestQueue:
    return RequestQueue("queue", max_threads=max_threads, window=FlightWindow(min_at_once, max_bytes))


class Held:
    """Actions that run until they are let go, and how many run."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.gate.wait(10)
        with self._lock:
            self.running -= 1


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_what_is_submitted_one_after_the_other_runs_side_by_side() -> None:
    """Also right after a pause, when one thread waits for work and would take both in turn."""
    queue = new_queue()
    for _ in range(20):
        queue.submit((), 0, lambda: None)
        assert queue.drain(10)
        second_runs, answers = threading.Event(), list[bool]()
        queue.submit((), 0, lambda runs=second_runs, kept=answers: kept.append(runs.wait(5)))  # type: ignore[misc]
        queue.submit((), 0, second_runs.set)
        assert queue.drain(10)
        assert answers == [True]
    queue.close()


@pytest.mark.parametrize(("num_bytes", "most"), [(0, 8), (200, 5), (600, 2), (5000, 2)])
def test_bytes_on_their_way_are_limited(num_bytes: int, most: int) -> None:
    """As many as fit, and two at least."""
    queue, held = new_queue(), Held()
    for _ in range(12):
        queue.submit((), num_bytes, held)
    until(lambda: held.running == most)
    held.gate.set()
    assert queue.drain(10)
    assert held.most == most
    queue.close()


def test_the_first_by_priority_goes_first() -> None:
    queue, order, held = new_queue(max_threads=1), list[int](), Held()
    queue.submit((0,), 0, held)
    until(lambda: held.running == 1)
    for priority in (3, 1, 2, 1):
        queue.submit((priority,), 0, lambda priority=priority: order.append(priority))  # type: ignore[misc]
    held.gate.set()
    assert queue.drain(10)
    assert order == [1, 1, 2, 3]
    queue.close()


def test_an_action_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    queue, done = new_queue(max_threads=1), threading.Event()
    queue.submit((0,), 0, lambda: [][1])
    queue.submit((1,), 0, done.set)
    assert done.wait(10)
    assert "a request of queue failed" in caplog.text
    queue.close()


def test_a_closed_lane_starts_nothing_and_its_threads_end() -> None:
    queue, held, late = new_queue(max_threads=2), Held(), threading.Event()
    queue.submit((), 0, held)
    until(lambda: held.running == 1)
    queue.submit((1,), 5000, late.set)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(queue.close)
        closing.result()
        queue.submit((), 0, late.set)
        held.gate.set()
        until(lambda: not any(thread.is_alive() for thread in queue._threads))


def test_a_lane_that_is_busy_says_that_it_could_not_be_drained() -> None:
    queue, held = new_queue(), Held()
    queue.submit((), 0, held)
    assert not queue.drain(0.05)
    held.gate.set()
    assert queue.drain(10)
    queue.close()
