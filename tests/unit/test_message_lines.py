"""When the messages of one rank are expected, which come one after the other through a store."""

import random

import pytest

from zooid.comm.store.message_lines import MessageLines
from zooid.comm.store.polled_receive import PolledReceive
from zooid.comm.transport_protocol import POINT_TO_POINT, Message
from zooid.schedule.arrival_times import pause_before_arrival
from zooid.schedule.polling_rules import behind_pause

OTHER = 3
CLOCKS_S = 5000.0
"""The other rank's clock is so far ahead."""


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


def poll_until(lines: MessageLines, asked: PolledReceive, stored_s: float, clocks_s: float = CLOCKS_S) -> float:
    """Do as a poller does until a message is there that lies in the store since a time. Return the time of the poll."""
    while True:
        now_s = asked.next_poll_s
        asked.is_in_flight = True
        lines.begin_poll(asked, now_s)
        asked.is_in_flight = False
        if now_s >= stored_s:
            lines.learn(asked, now_s, stored_s + clocks_s)
            lines.leave(asked, now_s)
            return now_s
        asked.num_misses += 1
        asked.last_poll_s = asked.missing_s = now_s
        waited_s = now_s - (asked.begun_s if asked.expected_s is None else asked.expected_s)
        is_expected = asked.expected_s is not None
        asked.next_poll_s = now_s + (
            pause_before_arrival(waited_s, asked.arrival) if is_expected else behind_pause(waited_s)
        )
        lines.stay(asked, now_s)


def test_a_message_is_expected_once_the_one_before_may_be_arriving() -> None:
    lines = MessageLines()
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
    lines.learn(first, 12.0, 12.0 + CLOCKS_S)
    lines.leave(first, 12.5)
    assert second.expected_s == 12.0, "when the first one began to arrive, not when all of it was there"


def test_what_is_behind_is_polled_for_rarely_but_not_never() -> None:
    lines = MessageLines()
    first, second = a_line(lines, 2, begun_s=10.0)
    assert second.next_poll_s == 10.0 + behind_pause(0.0)
    second.num_misses, second.last_poll_s = 1, 20.0
    lines.stay(second, 20.0)
    assert second.next_poll_s == 20.0 + behind_pause(10.0)
    assert behind_pause(10.0) == pytest.approx(5.0)
    for tenths in range(200, 260):
        first.is_in_flight = True
        lines.begin_poll(first, tenths / 10)
        first.is_in_flight = False
        lines.stay(first, tenths / 10 + 0.05)
    assert second.next_poll_s == 25.0, "polls for the first one do not defer it"


def test_an_answer_is_expected_after_the_own_message_that_it_answers() -> None:
    """The other rank begins at another moment each time, and answers the third message after half a second."""
    lines = MessageLines()
    found_s = 0.0
    for step in range(8):
        begun_s = 100.0 * step
        [first] = a_line(lines, 1, begun_s)
        sent_s = begun_s + (4.0, 1.0, 2.5, 6.0, 1.5)[step % 5]
        for number, before_s in enumerate((0.2, 0.1, 0.0)):
            lines.note_sent(OTHER, sent_s - before_s * (1 + number * step % 3))
        found_s = poll_until(lines, first, sent_s + 0.5)
    assert first.expected_s == sent_s
    assert first.num_misses <= 2
    assert found_s - sent_s - 0.5 < 0.02


def test_what_comes_before_the_own_message_does_not_wait_for_it() -> None:
    lines = MessageLines()
    for step in range(5):
        [first] = a_line(lines, 1, begun_s=10.0 * step)
        lines.note_sent(OTHER, 10.0 * step + (1.0, 2.0, 1.5)[step % 3])
        poll_until(lines, first, 10.0 * step + (1.0, 2.0, 1.5)[step % 3] + 0.5)
    late_s = []
    for step in range(5, 15):
        [first] = a_line(lines, 1, begun_s=10.0 * step)
        late_s.append(poll_until(lines, first, 10.0 * step + 0.5) - 10.0 * step - 0.5)
        lines.note_sent(OTHER, 10.0 * step + 5.0)
    assert late_s[0] < 4.0, "polled for although the message that told most has not been sent"
    assert max(late_s[5:]) < 0.05


def test_messages_in_step_are_polled_for_when_they_arrive() -> None:
    """Each a few percent sooner or later than usual."""
    generator = random.Random(3)
    lines = MessageLines()
    late_s: list[float] = []
    num_misses = 0
    for step in range(40):
        stored_s = 10.0 * step
        for one in a_line(lines, 4, begun_s=stored_s):
            stored_s += generator.gauss(0.3, 0.006)
            late_s.append(poll_until(lines, one, stored_s) - stored_s)
            num_misses += one.num_misses
    assert sum(late_s[20:]) / len(late_s[20:]) < 0.006
    assert num_misses <= 3.5 * len(late_s)


def test_messages_that_lie_there_are_polled_for_at_once() -> None:
    """A rank that has paused learns from the first one when it arrived, by the clock of its sender."""
    lines = MessageLines()
    for step in range(10):
        for number, one in enumerate(a_line(lines, 4, begun_s=10.0 * step)):
            poll_until(lines, one, 10.0 * step + 0.3 * (number + 1))
    asked = a_line(lines, 4, begun_s=200.0)
    found_s = [poll_until(lines, one, 190.0 + 0.3 * (number + 1)) for number, one in enumerate(asked)]
    assert found_s[-1] - found_s[0] < 0.01


def lateness_s(first_after_s: list[float]) -> list[float]:
    """How long a message lies in the store at most in each step, if the first of three comes after these times."""
    lines, begun_s = MessageLines(), 0.0
    late_s = []
    for after_s in first_after_s:
        begun_s += 100.0
        found_s = begun_s
        of_step = []
        for number, one in enumerate(a_line(lines, 3, begun_s)):
            stored_s = begun_s + after_s + 0.5 * number
            found_s = max(found_s, poll_until(lines, one, stored_s))
            of_step.append(found_s - stored_s)
        late_s.append(max(of_step))
    return late_s


@pytest.mark.parametrize(
    ("first_after_s", "allowed_s"),
    [
        pytest.param([30.0] + 6 * [1.0], 1.0, id="a first step that compiles"),
        pytest.param([1.0, 1.0, 20.0] + 6 * [1.0], 0.2, id="a pause"),
        pytest.param([*(6 * [20.0]), *(6 * [1.0])], 10.0, id="steps that become short"),
    ],
)
def test_slow_steps_do_not_make_later_ones_slow(first_after_s: list[float], allowed_s: float) -> None:
    late_s = lateness_s(first_after_s)
    slow = [number for number, after_s in enumerate(first_after_s) if after_s > 1.0]
    following = late_s[slow[-1] + 1 :]
    assert following[0] <= allowed_s
    assert max(following[1:]) < 0.6
    assert following[-1] < 0.1


def test_what_is_noted_of_a_line_that_never_ends_is_bounded() -> None:
    lines = MessageLines()
    [waiting] = a_line(lines, 1, begun_s=0.0)
    for number in range(1000):
        lines.note_sent(OTHER, float(number))
        lines.add(receive(1, float(number)))
        poll_until(lines, waiting, float(number))
        waiting = lines._lines[OTHER].receives[0]
    assert len(lines._lines[OTHER].sent_s) < 100


@pytest.mark.parametrize("jump_s", [40.0, -40.0])
def test_a_clock_that_jumps_costs_little(jump_s: float) -> None:
    """As that of a machine that slept: nothing is told from when its messages were sealed for a while."""
    lines = MessageLines()
    late_s = []
    for step in range(60):
        [one] = a_line(lines, 1, begun_s=10.0 * step)
        stored_s = 10.0 * step + 0.3
        late_s.append(poll_until(lines, one, stored_s, 0.0 if step < 10 else jump_s) - stored_s)
    assert max(late_s[10:]) < 0.1
    assert max(late_s[50:]) < 0.02
