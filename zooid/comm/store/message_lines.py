"""Lines of messages in a store: those of one rank come one after the other, in the order in which they are asked for.

Only the next message of a line is polled for. It is expected a learned time after some event: the arrival of the one
before it, the beginning of the line, or a message of this rank, which it may answer. A stage of a pipeline sends the
last grain forward, for example, and some time later the first gradient comes back. The best predictor is learned, too.
"""

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace

from zooid.comm.store.polled_receive import Edge, PolledReceive
from zooid.schedule.arrival_times import UNKNOWN, ArrivalTimes, pause_until
from zooid.schedule.polling_rules import behind_pause

_PREVIOUS, _OPENED, _SENT_BEFORE = 0, -1, -2
"""Events: the message before it arrives; the line begins; this rank sent its last message before that.

A positive number is that of a message that this rank has sent since the line began.
"""
_NUM_KEPT = 32
_MAX_SENT = 32
"""Events of one line. A program that always waits for some message never opens a new one."""


class _SenderClock:
    """Estimates when messages of similar sizes arrived in the store. They carry the time by their sender's clock.

    A reader only learns that a message was missing at one poll and there at the next. The message that was found
    soonest after it was sealed shows how far the two clocks are apart.
    """

    def __init__(self) -> None:
        self._until_found_s: deque[float] = deque(maxlen=_NUM_KEPT)

    def arrived_s(self, sealed_s: float, missing_s: float | None, found_s: float) -> float:
        """Return when a message arrived that was found at one time and missing at an earlier one, if that is given."""
        self._until_found_s.append(found_s - sealed_s)
        arrived_s = sealed_s + min(self._until_found_s)
        return arrived_s if missing_s is None else max(missing_s, arrived_s)


@dataclass
class _Line:
    """The receives from one rank that wait for their messages, and what has happened between the two ranks."""

    receives: list[PolledReceive] = field(default_factory=list)
    arrived_s: float | None = None
    """When the last message from the other rank arrived."""
    last_sent_s: float | None = None
    opened_s: float = 0.0
    sent_before_s: float | None = None
    """When this rank sent its last message to the other one before the line began."""
    sent_s: list[float] = field(default_factory=list)
    """When this rank sent messages to the other one since the line began."""
    clocks: defaultdict[int, _SenderClock] = field(default_factory=lambda: defaultdict(_SenderClock))
    """Clocks by the number of bits of a message's size, since larger messages take longer to upload."""

    def open(self, now_s: float) -> None:
        self.opened_s, self.sent_before_s, self.sent_s = now_s, self.last_sent_s, []

    def events_s(self, receive: PolledReceive) -> dict[int, float]:
        """Return the times of those events before a message that have already happened."""
        times_s = {_PREVIOUS: receive.previous_s, _OPENED: self.opened_s, _SENT_BEFORE: self.sent_before_s}
        happened_s = {event: time_s for event, time_s in times_s.items() if time_s is not None}
        return happened_s | dict(enumerate(self.sent_s, 1))


class MessageLines:
    """The receives that wait for messages outside of calls. The poller's lock guards all methods."""

    def __init__(self) -> None:
        self._lines: defaultdict[int, _Line] = defaultdict(_Line)
        self._times: defaultdict[Edge, ArrivalTimes] = defaultdict(ArrivalTimes)

    def add(self, receive: PolledReceive) -> None:
        line = self._line(receive)
        if not line.receives:
            line.open(receive.begun_s)
        line.receives.append(receive)
        self._place(receive, receive.begun_s)

    def note_sent(self, reader: int, now_s: float) -> None:
        """Note that this rank has sent a message, after which others may come back."""
        line = self._lines[reader]
        line.last_sent_s = now_s
        if line.receives and len(line.sent_s) < _MAX_SENT:
            line.sent_s.append(now_s)
            waiting = next((receive for receive in line.receives if not receive.is_in_flight), None)
            if waiting is not None:
                self._place(waiting, now_s)

    def begin_poll(self, receive: PolledReceive, now_s: float) -> None:
        """Expect the next message, since this one is about to arrive."""
        line = self._line(receive).receives
        if receive in line and receive is not line[-1]:
            following = line[line.index(receive) + 1]
            if not following.is_in_flight:
                self._place(following, now_s)

    def stay(self, receive: PolledReceive, now_s: float) -> None:
        """Place a receive again after a poll that found nothing, and with it the one that follows."""
        if receive in self._line(receive).receives:
            self._place(receive, now_s)
            self.begin_poll(receive, now_s)

    def leave(self, receive: PolledReceive, now_s: float) -> None:
        """Expect the next message, since this one is there."""
        line = self._line(receive)
        if receive in line.receives:
            line.receives.remove(receive)
            if line.receives:
                line.receives[0].previous_s = line.arrived_s
                if not line.receives[0].is_in_flight:
                    self._place(line.receives[0], now_s)

    def learn(self, receive: PolledReceive, asked_s: float, sealed_s: float) -> None:
        """Learn how long after its events a message arrived, which was there at a poll at this time."""
        line, edge = self._line(receive), receive.edge
        if edge is None or receive not in line.receives:
            return
        arrived_s = line.clocks[receive.num_bytes.bit_length()].arrived_s(sealed_s, receive.missing_s, asked_s)
        line.arrived_s = arrived_s
        if receive.expected_s is None:  # messages come in another order than they are asked for
            return
        after_s = {event: arrived_s - time_s for event, time_s in line.events_s(receive).items()}
        before = {event: time_s for event, time_s in after_s.items() if time_s >= 0}
        self._times[edge].came(before, at_first_poll=not receive.num_misses)

    def clear(self) -> None:
        self._lines.clear()

    def _line(self, receive: PolledReceive) -> _Line:
        assert receive.line is not None
        return self._lines[receive.line]

    def _place(self, receive: PolledReceive, now_s: float) -> None:
        """Expect a receive if it is its turn, and poll for it rarely if not."""
        line = self._line(receive)
        index = line.receives.index(receive)
        if index == 0:
            receive.previous_s = line.arrived_s
            self._expect(receive, line, now_s)
        elif line.receives[index - 1].is_in_flight:
            receive.previous_s = now_s if receive.previous_s is None else receive.previous_s
            self._expect(receive, line, now_s)
        else:
            # The polls for the messages before it must not defer this one: programs may send in another order.
            since_s = receive.last_poll_s if receive.num_misses else receive.begun_s
            receive.previous_s = receive.expected_s = None
            receive.next_poll_s = since_s + behind_pause(since_s - receive.begun_s)

    def _expect(self, receive: PolledReceive, line: _Line, now_s: float) -> None:
        """Expect a message after the best predictor among the events that have happened."""
        assert receive.edge is not None
        usual, happened_s = self._times[receive.edge].usual, line.events_s(receive)

        def spread_s(event: int) -> float:
            return usual[event].spread_s

        known = [event for event in usual if event in happened_s]
        if known:
            event = min(known, key=spread_s)
            arrival = usual[event]
            is_best = spread_s(event) <= min(map(spread_s, usual))
            poll_s = happened_s[event] + (arrival.early_s if is_best else arrival.late_s)
        else:
            event = max((_PREVIOUS, _OPENED), key=lambda event: happened_s.get(event, -math.inf))
            arrival, poll_s = UNKNOWN, happened_s[event]
        is_new = receive.expected_s is None or receive.event != event
        if is_new or receive.expected_s != happened_s[event]:
            # A rank that has paused since the event expects the message from now on.
            usual_s = max(arrival.usual_s, now_s - happened_s[event])
            receive.arrival = replace(arrival, usual_s=usual_s)
            receive.event, receive.expected_s = event, happened_s[event]
            if is_new or not receive.num_misses:
                receive.next_poll_s = now_s + pause_until(poll_s - now_s)
