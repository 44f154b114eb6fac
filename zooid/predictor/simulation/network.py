"""How messages get from member to member in simulated time, by the rules that real members follow."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from zooid.core.resources.link import STORE_SITE
from zooid.predictor.simulation.clock import Done, Pipe, Simulation, nothing
from zooid.predictor.simulation.layout import Layout, Looks, Way
from zooid.schedule.polling_rules import is_urgent, local_pause, settled_delay
from zooid.schedule.stream_rules import EAGER_BYTES, num_stripes, streams_between
from zooid.schedule.transfer_lists import DOWNLOADS, UPLOADS, FlightWindow

Moved = Callable[[float], None]
"""Called when a message has left, or is there, with the time at which its bytes began to move."""
Group = Hashable
"""Process groups have streams and lanes of their own."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one or more readers; `name` is unique in a step."""

    group: Group
    name: Hashable
    source: int
    readers: tuple[int, ...]
    num_bytes: float
    kind: Hashable
    """What makes messages alike in when they come."""
    call: Hashable = None
    place: int | None = None
    """Of a collective's message: how many its source sends before it in the call."""


class Passing(Protocol):
    """Sends and takes messages."""

    def send(self, message: Message, sent: Moved) -> None:
        """Call back when it has left."""

    def receive(self, message: Message, reader: int, arrived: Moved, expected_by: int | None = None) -> None:
        """Call back when it is there. It is expected when the reader itself has sent that place of the same call."""


class Network:
    """Everybody's links and cores as pipes."""

    def __init__(self, simulation: Simulation, layout: Layout, rates: dict[tuple[str, str], float]) -> None:
        """`rates` are factors on what ways carry, where a step is luckier than another."""
        self.simulation = simulation
        self.sites = [site for row in layout.rows_of_sites for site in row]
        self._ways = layout.ways
        shared = Pipe(layout.host_cores) if layout.host_cores else None
        self._cores = [shared or Pipe(1.0) for _ in self.sites]
        self._rates = {ends: way.bytes_per_s * rates.get(ends, 1.0) for ends, way in layout.ways.items()}
        self._up = [Pipe(max((r for e, r in self._rates.items() if e[0] == site), default=1.0)) for site in self.sites]
        self._down = [
            Pipe(max((r for e, r in self._rates.items() if e[1] == site), default=1.0)) for site in self.sites
        ]
        self._totals = {
            ends: Pipe(w.total_bytes_per_s) for ends, w in self._ways.items() if w.total_bytes_per_s < math.inf
        }
        self._answers = {
            ends: Pipe(w.total_requests_per_s) for ends, w in self._ways.items() if w.total_requests_per_s < math.inf
        }

    def compute(self, member: int, seconds: float, done: Done) -> None:
        self.simulation.flow(seconds, (self._cores[member],), 1.0, done)

    def way(self, source: int, reader: int) -> Way:
        return self._ways[self.sites[source], self.sites[reader]]

    def carry(self, source: int, reader: int, num_bytes: float, num_streams: int, done: Done) -> None:
        """Bytes straight from one member to another."""
        ends = (self.sites[source], self.sites[reader])
        way = self._ways[ends]
        for member in (source, reader):
            self._spend(member, way, num_bytes)
        pipes = [self._up[source], self._down[reader]]
        if ends in self._totals:
            pipes.append(self._totals[ends])
        limit = min(self._rates[ends], num_streams * way.stream_bytes_per_s)
        self.simulation.flow(num_bytes, pipes, limit, done)

    def put(self, member: int, num_bytes: float, done: Done) -> None:
        ends = (self.sites[member], STORE_SITE)
        self._request(ends, member, lambda: self._move(ends, member, self._up[member], num_bytes, done))

    def get(self, member: int, num_bytes: float, done: Done) -> None:
        ends = (STORE_SITE, self.sites[member])
        self._request(ends, member, lambda: self._move(ends, member, self._down[member], num_bytes, done))

    def _request(self, ends: tuple[str, str], member: int, then: Done) -> None:
        rtt_s = self._ways[ends].rtt_s
        if ends in self._answers and rtt_s > 0:
            self.simulation.flow(1.0, (self._answers[ends],), 1 / rtt_s, then)
        else:
            self.simulation.after(rtt_s, then)

    def _move(self, ends: tuple[str, str], member: int, own: Pipe, num_bytes: float, done: Done) -> None:
        way = self._ways[ends]
        self._spend(member, way, num_bytes)
        pipes = (own, self._totals[ends]) if ends in self._totals else (own,)
        self.simulation.flow(num_bytes, pipes, min(self._rates[ends], way.stream_bytes_per_s), done)

    def _spend(self, member: int, way: Way, num_bytes: float) -> None:
        """What a message takes from its member's computing."""
        seconds = way.cpu_s + num_bytes * way.cpu_s_per_byte
        if seconds > 0:
            self.compute(member, seconds, nothing)


class DirectPassing:
    """Connected members: one message after the other between two of them; a large one when its reader is ready."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._simulation = network.simulation
        self._queues: dict[Hashable, deque[tuple[Message, int, Moved]]] = {}
        """By channel that is busy: what waits."""
        self._wanted: dict[tuple[Hashable, int], Moved] = {}
        self._here: dict[tuple[Hashable, int], float] = {}
        """Messages that nobody wanted yet, and when they began."""
        self._ready: set[tuple[Hashable, int]] = set()
        self._unsent: dict[tuple[Hashable, int], tuple[Message, Moved]] = {}

    def send(self, message: Message, sent: Moved) -> None:
        all_sent = sent if len(message.readers) == 1 else _after(len(message.readers), sent)
        for reader in message.readers:
            place = (message.name, reader)
            if message.num_bytes <= EAGER_BYTES or place in self._ready:
                self._enter(message, reader, all_sent)
            else:
                self._unsent[place] = (message, all_sent)

    def receive(self, message: Message, reader: int, arrived: Moved, expected_by: int | None = None) -> None:
        place = (message.name, reader)
        if place in self._here:
            arrived(self._here.pop(place))
            return
        self._wanted[place] = arrived
        if message.num_bytes > EAGER_BYTES:
            way = self._network.way(message.source, reader)
            self._simulation.after(way.rtt_s / 2, lambda: self._on_ready(place))

    def _on_ready(self, place: tuple[Hashable, int]) -> None:
        unsent = self._unsent.pop(place, None)
        if unsent is None:
            self._ready.add(place)
        else:
            self._enter(unsent[0], place[1], unsent[1])

    def _enter(self, message: Message, reader: int, sent: Moved) -> None:
        channel = (message.group, message.source, reader, message.num_bytes > EAGER_BYTES)
        queue = self._queues.get(channel)
        if queue is None:
            self._queues[channel] = deque()
            self._begin(channel, message, reader, sent)
        else:
            queue.append((message, reader, sent))

    def _begin(self, channel: Hashable, message: Message, reader: int, sent: Moved) -> None:
        way = self._network.way(message.source, reader)
        began_s = self._simulation.now_s
        is_large = message.num_bytes > EAGER_BYTES
        streams = num_stripes(int(message.num_bytes), streams_between(way.rtt_s)) if is_large else 1

        def left() -> None:
            queue = self._queues[channel]
            if queue:
                self._begin(channel, *queue.popleft())
            else:
                del self._queues[channel]
            self._simulation.after(way.rtt_s / 2, lambda: self._arrive(message, reader, began_s))
            sent(began_s)

        self._network.carry(message.source, reader, message.num_bytes, streams, left)

    def _arrive(self, message: Message, reader: int, began_s: float) -> None:
        wanted = self._wanted.pop((message.name, reader), None)
        if wanted is None:
            self._here[message.name, reader] = began_s
        else:
            wanted(began_s)


@dataclass(eq=False, slots=True)
class _Wanted:
    message: Message
    reader: int
    arrived: Moved
    expected_s: float | None = None


class StorePassing:
    """Through a store: puts and gets in windows, and looks, whose moments members have learned long ago."""

    def __init__(self, network: Network, *, looks: Looks) -> None:
        self._network = network
        self._simulation = network.simulation
        self._looks = looks
        self._uploads: dict[Hashable, _Lane] = {}
        self._downloads: dict[Hashable, _Lane] = {}
        self._stored: set[Hashable] = set()
        self._wanted: defaultdict[Hashable, list[_Wanted]] = defaultdict(list)
        """By message that is not stored yet."""
        self._places: defaultdict[Hashable, set[int]] = defaultdict(set)
        """By reader and call: what it has sent itself."""
        self._expecting: defaultdict[Hashable, list[_Wanted]] = defaultdict(list)
        """By reader, call and place that it has not sent yet."""

    def send(self, message: Message, sent: Moved) -> None:
        lane = self._lane(self._uploads, (message.group, message.source), UPLOADS)

        def stored(began_s: float) -> None:
            lane.leave(message.num_bytes)
            self._stored.add(message.name)
            self._note_sent(message)
            for wanted in self._wanted.pop(message.name, ()):
                if wanted.expected_s is not None:
                    self._look(wanted)
            sent(began_s)

        def begin() -> None:
            done = partial(stored, self._simulation.now_s)
            self._network.put(message.source, message.num_bytes, done)

        lane.enter(message.num_bytes, begin)

    def receive(self, message: Message, reader: int, arrived: Moved, expected_by: int | None = None) -> None:
        wanted = _Wanted(message, reader, arrived)
        if message.name not in self._stored:
            self._wanted[message.name].append(wanted)
        if self._looks != "store" or expected_by is None or expected_by in self._places[reader, message.call]:
            self._expect(wanted)
        else:
            self._expecting[reader, message.call, expected_by].append(wanted)

    def _expect(self, wanted: _Wanted) -> None:
        wanted.expected_s = self._simulation.now_s
        if wanted.message.name in self._stored:
            self._look(wanted)

    def _note_sent(self, message: Message) -> None:
        if message.place is None:
            return
        self._places[message.source, message.call].add(message.place)
        for wanted in self._expecting.pop((message.source, message.call, message.place), ()):
            self._expect(wanted)

    def _look(self, wanted: _Wanted) -> None:
        """The message is stored, and expected: it is taken at the next look."""
        message = wanted.message
        assert wanted.expected_s is not None
        waited_s = self._simulation.now_s - wanted.expected_s
        delay_s = 0.0
        if self._looks == "folder":
            delay_s = local_pause(waited_s) / 2 if waited_s > 0 else 0.0
        elif self._looks == "store":
            delay_s = settled_delay(waited_s, is_urgent(message.place is not None, message.num_bytes))
        lane = self._lane(self._downloads, (message.group, wanted.reader), DOWNLOADS)

        def here(began_s: float) -> None:
            lane.leave(message.num_bytes)
            wanted.arrived(began_s)

        def get() -> None:
            self._network.get(wanted.reader, message.num_bytes, partial(here, self._simulation.now_s))

        self._simulation.after(delay_s, lambda: lane.enter(message.num_bytes, get))

    def _lane(self, lanes: "dict[Hashable, _Lane]", key: Hashable, window: FlightWindow) -> "_Lane":
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = _Lane(window)
        return lane


class _Lane:
    """Messages that go in order, so many at once."""

    __slots__ = ("_bytes", "_number", "_queue", "_window")

    def __init__(self, window: FlightWindow) -> None:
        self._window = window
        self._number = 0
        self._bytes = 0.0
        self._queue: deque[tuple[float, Done]] = deque()

    @property
    def is_busy(self) -> bool:
        return self._number > 0

    def enter(self, num_bytes: float, begin: Done) -> None:
        self._queue.append((num_bytes, begin))
        self._admit()

    def leave(self, num_bytes: float) -> None:
        self._number -= 1
        self._bytes -= num_bytes
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._window.admits(self._number, self._bytes, self._queue[0][0]):
            num_bytes, begin = self._queue.popleft()
            self._number += 1
            self._bytes += num_bytes
            begin()


def _after(count: int, sent: Moved) -> Moved:
    left = count

    def one(began_s: float) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            sent(began_s)

    return one
