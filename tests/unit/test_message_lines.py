"""When the messages of one rank are expected, which come one after the other through a store."""

import pytest

from zooid.comm.store.message_lines import MessageLines
from zooid.comm.store.polled_receive import PolledReceive
from zooid.comm.transport_protocol import POINT_TO_POINT, Message
from zooid.schedule.polling_rules import Lags, behind_pause

OTHER = 3


class Landing:
    """Where nothing lands."""

    def memory(self) -> memoryview:
        raise AssertionError("nothing is received")

    def take(self, data: memoryview, began_s: float) -> None:
        raise AssertionError("nothing is received")


def receive(tag: int, begun_s: float) -> PolledReceive:
    message = Message(POINT_TO_POINT, tag, 0)
    made = PolledReceive(list, lambda *_: True, 10**6, Landing(), lambda error: None, source=OTHER, message=message)
    made.begun_s = begun_s
    return made


def a_line(lines: MessageLines, num_messages: int, begun_s: float) -> list[PolledReceive]:
    asked = [receive(tag, begun_s) for tag in range(num_messages)]
    for one in asked:
        lines.add(one)
    return asked


def test_a_message_is_expected_once_the_one_before_may_be_arriving() -> None:
    lags = Lags()
    lines = MessageLines(lags)
    first, second, third = a_line(lines, 3, begun_s=10.0)
    assert (first.expected_s, second.expected_s, third.expected_s) == (10.0, None, None)
    first.is_in_flight = True
    lines.begin_poll(first, 11.0)
    assert (second.expected_s, third.expected_s) == (11.0, None)
    first.is_in_flight = False
    lines.stay(first, 11.1)
    assert first.expected_s == 10.0
    assert second.expected_s is None, "the first one was not there"
    first.is_in_flight = True
    lines.begin_poll(first, 12.0)
    lines.leave(first, 12.5)
    assert second.expected_s == 12.0, "when the first one began to arrive, not when all of it was there"


def test_what_is_behind_is_polled_for_rarely_but_not_never() -> None:
    lines = MessageLines(Lags())
    _, second = a_line(lines, 2, begun_s=10.0)
    assert second.next_poll_s == 10.0 + behind_pause(0.0)
    lines.stay(second, 20.0)
    assert second.next_poll_s == 20.0 + behind_pause(10.0)
    assert behind_pause(10.0) == pytest.approx(5.0)


def test_the_first_of_a_line_is_expected_after_the_own_message_that_it_answers() -> None:
    """This rank sends three messages at 1, 2 and 3 s, and the first answer is there half a second later."""
    lags = Lags()
    lines = MessageLines(lags)
    for step in range(2):
        begun_s = 100.0 * step
        [first] = a_line(lines, 1, begun_s)
        for sent_s in (1.0, 2.0, 3.0):
            lines.note_sent(OTHER, begun_s + sent_s)
        if step == 0:
            assert first.expected_s == begun_s
        else:
            assert first.expected_s == begun_s + 3.0
            assert first.lag_s == pytest.approx(0.5)
        first.num_misses = 1
        lines.learn(first, begun_s + 3.5)
        lines.leave(first, begun_s + 3.6)


def test_a_first_one_that_no_longer_waits_for_the_last_own_message_is_expected_earlier() -> None:
    lags = Lags()
    lines = MessageLines(lags)
    [first] = a_line(lines, 1, begun_s=0.0)
    lines.note_sent(OTHER, 1.0)
    lines.learn(first, 1.1)
    lines.leave(first, 1.1)
    for step in range(1, 30):
        begun_s = 10.0 * step
        [first] = a_line(lines, 1, begun_s)
        lines.note_sent(OTHER, begun_s + 1.0)
        if first.expected_s == begun_s:
            return
        lags.was_there(first.lag_key)
        lines.learn(first, begun_s + 1.0 + first.lag_s)
        lines.leave(first, begun_s + 1.0 + first.lag_s)
    pytest.fail("the message of the own rank is waited for again and again, though the other one comes before it")


def test_later_messages_of_a_line_do_not_wait_for_own_ones() -> None:
    lines = MessageLines(Lags())
    first, second = a_line(lines, 2, begun_s=0.0)
    lines.note_sent(OTHER, 5.0)
    first.num_misses = 1
    lines.learn(first, 5.5)
    lines.leave(first, 5.5)
    assert second.expected_s == 5.5
