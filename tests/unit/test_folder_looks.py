"""Members look in a folder for the next message of a rank, rarely for those behind it, and find each of them."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zooid.comm.store.store_transport import StoreTransport
from zooid.comm.transport_protocol import POINT_TO_POINT, Message
from zooid.schedule.polling_rules import local_lag_after, local_pause
from zooid.store import open_store

NUM_MESSAGES = 8
TIMEOUT_S = 20.0


class _Landing:
    """Where a message ends, with the moment at which it came."""

    def __init__(self) -> None:
        self.data = b""
        self.is_there = threading.Event()

    def memory(self) -> memoryview:
        raise AssertionError("messages in a store come whole")

    def take(self, data: memoryview, began_s: float) -> None:
        self.data = bytes(data)

    def done(self, error: BaseException | None) -> None:
        assert error is None
        self.is_there.set()


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[StoreTransport]:
    made = StoreTransport(open_store(tmp_path.as_uri()), "group", 0, timeout_s=TIMEOUT_S)
    yield made
    made.close("the test is over")


def receive_all(transport: StoreTransport) -> list[_Landing]:
    """Ask for messages of this rank to itself, which differ in their tags, as those of grains do."""
    landings = [_Landing() for _ in range(NUM_MESSAGES)]
    for tag, landing in enumerate(landings):
        transport.receive(Message(POINT_TO_POINT, tag, 0), 0, 1, landing, landing.done)
    return landings


def send(transport: StoreTransport, tag: int) -> None:
    transport.send(Message(POINT_TO_POINT, tag, 0), memoryview(bytes([tag])), (0,), lambda error: None)


def test_messages_that_wait_behind_another_hardly_cost_looks(transport: StoreTransport) -> None:
    receive_all(transport)
    time.sleep(0.3)
    num_looks = transport.counter.read().num_missed_gets
    assert NUM_MESSAGES <= num_looks < 20 * NUM_MESSAGES, "each of them alone would take 55 looks"


@pytest.mark.parametrize("order", [range(NUM_MESSAGES), range(NUM_MESSAGES - 1, -1, -1)], ids=["in_order", "reversed"])
def test_every_message_is_found_whatever_comes_before(transport: StoreTransport, order: range) -> None:
    landings = receive_all(transport)
    for tag in order:
        time.sleep(0.01)
        send(transport, tag)
        assert landings[tag].is_there.wait(TIMEOUT_S), f"message {tag} waits for another one"
        assert landings[tag].data == bytes([tag])


def test_looks_follow_the_usual_lag() -> None:
    lag_s = 0.0
    for _ in range(20):
        lag_s = local_lag_after(lag_s, 0.1)
    assert lag_s == pytest.approx(0.1, rel=0.01)
    assert local_pause(0.0, lag_s) == pytest.approx(0.07, rel=0.01)
    assert local_pause(0.09, lag_s) == pytest.approx(0.009), "near the lag, looks are as frequent as without one"
    assert local_lag_after(lag_s, 0.03) == 0.03
