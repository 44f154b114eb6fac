"""Lines of messages in a store: those of one rank come one after the other, in the order in which they are asked for.

So each is expected a learned time after the one before it. The first one of a line has none before it. It is expected
a learned time after a message that this rank sends to the other one: a stage of a pipeline sends the last grain
forward, and some time later the first gradient comes back. Which of its messages that is, is learned, too.
"""

from collections import defaultdict

from zooid.comm.store.polled_receive import Edge, PolledReceive
from zooid.schedule.polling_rules import Lags, behind_pause

_MARGIN_S = 0.02
"""A message that this rank sends so shortly before one arrives may be sent after it the next time."""


class MessageLines:
    """The receives that wait for messages outside of calls, by rank. The poller's lock guards all methods."""

    def __init__(self, lags: Lags) -> None:
        self._lags = lags
        self._lines: defaultdict[int, list[PolledReceive]] = defaultdict(list)
        self._sent_s: dict[int, list[float]] = {}
        """When this rank sent messages to another one, since the first receive of the line was asked for."""
        self._num_before: dict[Edge, int] = {}
        """The number of messages that this rank sends before the first one of a line is expected."""

    def add(self, receive: PolledReceive) -> None:
        assert receive.line is not None
        line = self._lines[receive.line]
        line.append(receive)
        if len(line) == 1:
            receive.opens_line = True
            self._sent_s[receive.line] = []
        self._place(receive, receive.begun_s)

    def note_sent(self, reader: int, now_s: float) -> None:
        """Note that this rank has sent a message, after which others may come back."""
        line = self._lines.get(reader)
        if line and line[0].opens_line:
            self._sent_s[reader].append(now_s)
            if not line[0].is_in_flight:
                self._place(line[0], now_s)

    def begin_poll(self, receive: PolledReceive, now_s: float) -> None:
        """Expect the next message, since this one is about to arrive."""
        following = self._following(receive)
        if following is not None and not following.is_in_flight:
            self._place(following, now_s)

    def stay(self, receive: PolledReceive, now_s: float) -> None:
        """Place a receive again after a poll that found nothing, and with it the one that follows."""
        if receive in self._lines.get(_rank(receive), ()):
            self._place(receive, now_s)
            self.begin_poll(receive, now_s)

    def leave(self, receive: PolledReceive, now_s: float) -> None:
        """Expect the next message, since this one is there."""
        line = self._lines.get(_rank(receive))
        if line and receive in line:
            line.remove(receive)
            if line:
                self._place(line[0], now_s)

    def learn(self, receive: PolledReceive, arrived_s: float) -> None:
        """Learn after which of this rank's messages the first one of a line comes, from one that has come."""
        edge = receive.edge
        if not receive.opens_line or edge is None:
            return
        sent_s = self._sent_s[_rank(receive)]
        num_before = sum(time_s <= arrived_s - _MARGIN_S for time_s in sent_s)
        used = self._num_before.get(edge, 0)
        if receive.expected_s is not None and num_before <= used:
            was_there = receive.num_misses == 0 and receive.lag_s < _MARGIN_S
            num_before = used - 1 if was_there and used > 0 else used
        if num_before != used:
            self._num_before[edge] = num_before
            since_s = sent_s[num_before - 1] if num_before else receive.begun_s
            self._lags.learn_anew((edge, num_before), max(0.0, arrived_s - since_s))

    def clear(self) -> None:
        self._lines.clear()

    def _place(self, receive: PolledReceive, now_s: float) -> None:
        """Expect a receive from now on if it is its turn, and poll for it rarely if not."""
        edge = receive.edge
        assert edge is not None
        line = self._lines[_rank(receive)]
        index = line.index(receive)
        num_before = self._num_before.get(edge, 0) if receive.opens_line else -1
        is_early = receive.opens_line and len(self._sent_s[_rank(receive)]) < num_before
        is_behind = index > 0 and not line[index - 1].is_in_flight
        if is_early or is_behind:
            receive.expected_s = None
            receive.next_poll_s = now_s + behind_pause(now_s - receive.begun_s)
        elif receive.expected_s is None:
            key = (edge, num_before)
            receive.begin_to_expect(now_s, key, self._lags.of(key))

    def _following(self, receive: PolledReceive) -> PolledReceive | None:
        line = self._lines.get(_rank(receive), [])
        return line[line.index(receive) + 1] if receive in line[:-1] else None


def _rank(receive: PolledReceive) -> int:
    assert receive.line is not None
    return receive.line
