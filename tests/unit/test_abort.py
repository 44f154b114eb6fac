"""A flag that frees every wait, and tells those who asked to be told."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from zooid.core.abort import Abort
from zooid.core.errors import CommAborted


def test_who_asked_is_told_the_reason_once() -> None:
    abort, told = Abort(), list[str]()
    abort.on_set(told.append)
    assert told == []
    abort.set("the first reason")
    abort.set("another")
    assert told == ["the first reason"]


def test_who_asks_too_late_is_told_at_once() -> None:
    abort, told = Abort(), list[str]()
    abort.set("over")
    abort.on_set(told.append)
    assert told == ["over"]


def test_who_takes_it_back_is_not_told() -> None:
    abort = Abort()
    told, others = list[str](), list[str]()
    abort.on_set(told.append)
    abort.on_set(others.append)
    abort.forget(told.append)
    abort.forget(told.append)
    abort.set("over")
    assert (told, others) == ([], ["over"])


def test_a_callback_may_use_the_flag() -> None:
    """It is called without the lock."""
    abort, seen = Abort(), list[bool]()

    def react(reason: str) -> None:
        seen.append(abort.is_set)
        abort.set("again")
        abort.on_set(lambda reason: seen.append(reason == "over"))
        abort.forget(react)

    abort.on_set(react)
    abort.set("over")
    assert seen == [True, True]


def test_whoever_asks_while_it_is_being_set_is_told_exactly_once() -> None:
    for _ in range(50):
        abort, barrier, told = Abort(), threading.Barrier(4), list[str]()

        def ask(abort: Abort = abort, barrier: threading.Barrier = barrier, told: list[str] = told) -> None:
            barrier.wait()
            abort.on_set(told.append)

        def set_it(abort: Abort = abort, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            abort.set("over")

        with ThreadPoolExecutor(4) as pool:
            for future in [*(pool.submit(ask) for _ in range(3)), pool.submit(set_it)]:
                future.result(timeout=5)
        assert told == ["over"] * 3


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 60.0])
def test_a_sleep_ends_when_the_flag_is_set(seconds: float) -> None:
    abort = Abort()
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(abort.sleep, seconds)
        began_s = time.monotonic()
        abort.set("over")
        if seconds > 1:
            with pytest.raises(CommAborted, match="over"):
                sleeping.result(timeout=5)
            assert time.monotonic() - began_s < 1.0
    with pytest.raises(CommAborted, match="over"):
        abort.sleep(seconds)
    with pytest.raises(CommAborted, match="over"):
        abort.check()


def test_without_the_flag_a_sleep_just_ends() -> None:
    abort = Abort()
    for seconds in (-1.0, 0.0, 0.001, 0.005):
        abort.sleep(seconds)
    abort.check()
    assert not abort.is_set
