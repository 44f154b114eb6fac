"""Messages between members in simulated time, sent by the rules that real members follow."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.machine_sites import is_machine, link_ends
from zooid.predictor.simulation.clock import Done, Pipe, Simulation, nothing
from zooid.predictor.simulation.layout import DirectedLink, Layout, Looks
from zooid.schedule.arrival_times import line_delay
from zooid.schedule.polling_rules import is_urgent, local_pause, settled_delay
from zooid.schedule.stream_rules import EAGER_BYTES, num_stripes, streams_between
from zooid.schedule.transfer_lists import DOWNLOADS, UPLOADS, FlightWindow

Moved = Callable[[float], None]
"""Called when a message was sent or received, with the time at which its bytes started to move."""
Group = Hashable
"""A process group; each group has its own streams and lanes."""
_Delivery = tuple[Hashable, int]
"""A message's name and its reader."""


@dataclass(frozen=True, slots=True)
class SimulatedMessage:
    """One message to one or more readers."""

    group: Group
    name: Hashable
    """A name that is unique in the step."""
    source: int
    readers: tuple[int, ...]
    num_bytes: float
    call: Hashable = None
    """The collective call that the message belongs to, if any."""
    send_index: int | None = None
    """Number of messages that the source sends before this one in the same collective call."""


class SimulatedTransport(Protocol):
    """Sends and receives messages in simulated time."""

    def send(self, message: SimulatedMessage, sent: Moved) -> None:
        """Call `sent` when the message has left."""

    def receive(self, message: SimulatedMessage, reader: int, arrived: Moved, expected_by: int | None = None) -> None:
        """Call `arrived` when the reader has the message.

        The reader expects it once it has sent its own message with the index `expected_by` of the same call.
        """


class Network:
    """The links and cores of all members, as pipes."""

    def __init__(self, simulation: Simulation, layout: Layout, rate_factors: dict[tuple[str, str], float]) -> None:
        """Scale the rate of each link by its factor, which differs from step to step."""
        self.simulation = simulation
        self.sites = [site for row in layout.rows_of_sites for site in row]
        self._links = layout.links
        shared = Pipe(layout.host_cores) if layout.host_cores else None
        self._cores = [shared or Pipe(1.0) for _ in self.sites]
        self._rates = {ends: link.bytes_per_s * rate_factors.get(ends, 1.0) for ends, link in layout.links.items()}
        self._uplinks = self._interfaces(0)
        self._downlinks = self._interfaces(1)
        self._inner_uplinks = [Pipe(self._rates.get((site, site), 1.0)) for site in self.sites]
        self._inner_downlinks = [Pipe(self._rates.get((site, site), 1.0)) for site in self.sites]
        self._totals = {
            ends: Pipe(link.total_bytes_per_s)
            for ends, link in self._links.items()
            if link.total_bytes_per_s < math.inf
        }
        self._requests = {
            ends: Pipe(link.total_requests_per_s)
            for ends, link in self._links.items()
            if link.total_requests_per_s < math.inf
        }

    def compute(self, member: int, seconds: float, done: Done) -> None:
        self.simulation.flow(seconds, (self._cores[member],), 1.0, done)

    def link(self, source: int, reader: int) -> DirectedLink:
        return self._links[self.sites[source], self.sites[reader]]

    def carry(self, source: int, reader: int, num_bytes: float, num_streams: int, done: Done) -> None:
        """Move bytes directly from one member to another."""
        ends = (self.sites[source], self.sites[reader])
        link = self._links[ends]
        for member in (source, reader):
            self._spend(member, link, num_bytes)
        if ends[0] == ends[1] and is_machine(ends[0]):
            pipes, total = [self._inner_uplinks[source], self._inner_downlinks[reader]], self._totals.get(ends)
        else:
            pipes, total = [self._uplinks[source], self._downlinks[reader]], self._totals.get(link_ends(*ends))
        if total is not None:
            pipes.append(total)
        limit = min(self._rates[ends], num_streams * link.stream_bytes_per_s)
        self.simulation.flow(num_bytes, pipes, limit, done)

    def put(self, member: int, num_bytes: float, done: Done) -> None:
        ends = (self.sites[member], STORE_SITE)
        self._request(ends, lambda: self._move(ends, member, self._uplinks[member], num_bytes, done))

    def get(self, member: int, num_bytes: float, done: Done) -> None:
        ends = (STORE_SITE, self.sites[member])
        self._request(ends, lambda: self._move(ends, member, self._downlinks[member], num_bytes, done))

    def _interfaces(self, end: int) -> list[Pipe]:
        """The interface of each member. Members of one machine share theirs, and do not need it among themselves."""
        machines = {site: self._interface(site, end) for site in set(self.sites) if is_machine(site)}
        return [machines.get(site) or self._interface(site, end) for site in self.sites]

    def _interface(self, site: str, end: int) -> Pipe:
        """An interface as fast as the fastest link from (end 0) or to (end 1) its site."""
        inside = (site, site) if is_machine(site) else None
        return Pipe(
            max((rate for ends, rate in self._rates.items() if ends[end] == site and ends != inside), default=1.0)
        )

    def _request(self, ends: tuple[str, str], then: Done) -> None:
        rtt_s = self._links[ends].rtt_s
        requests = self._requests.get(link_ends(*ends))
        if requests is not None and rtt_s > 0:
            self.simulation.flow(1.0, (requests,), 1 / rtt_s, then)
        else:
            self.simulation.after(rtt_s, then)

    def _move(self, ends: tuple[str, str], member: int, interface: Pipe, num_bytes: float, done: Done) -> None:
        link = self._links[ends]
        self._spend(member, link, num_bytes)
        total = self._totals.get(link_ends(*ends))
        pipes = (interface,) if total is None else (interface, total)
        self.simulation.flow(num_bytes, pipes, min(self._rates[ends], link.stream_bytes_per_s), done)

    def _spend(self, member: int, link: DirectedLink, num_bytes: float) -> None:
        """Spend the processor time of a message, which slows the member's computing."""
        seconds = link.cpu_s + num_bytes * link.cpu_s_per_byte
        if seconds > 0:
            self.compute(member, seconds, nothing)


class SimulatedTcp:
    """Connected members: a pair sends one message after another, and large ones only when the reader is ready."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._simulation = network.simulation
        self._queues: dict[Hashable, deque[tuple[SimulatedMessage, int, Moved]]] = {}
        """Waiting messages of each busy channel."""
        self._receives: dict[_Delivery, Moved] = {}
        self._arrived: dict[_Delivery, float] = {}
        """Start times of messages that arrived before their reader asked for them."""
        self._ready: set[_Delivery] = set()
        self._unsent: dict[_Delivery, tuple[SimulatedMessage, Moved]] = {}

    def send(self, message: SimulatedMessage, sent: Moved) -> None:
        all_sent = sent if len(message.readers) == 1 else _after(len(message.readers), sent)
        for reader in message.readers:
            delivery = (message.name, reader)
            if message.num_bytes <= EAGER_BYTES or delivery in self._ready:
                self._enqueue(message, reader, all_sent)
            else:
                self._unsent[delivery] = (message, all_sent)

    def receive(self, message: SimulatedMessage, reader: int, arrived: Moved, expected_by: int | None = None) -> None:
        delivery = (message.name, reader)
        if delivery in self._arrived:
            arrived(self._arrived.pop(delivery))
            return
        self._receives[delivery] = arrived
        if message.num_bytes > EAGER_BYTES:
            link = self._network.link(message.source, reader)
            self._simulation.after(link.rtt_s / 2, lambda: self._on_ready(delivery))

    def _on_ready(self, delivery: _Delivery) -> None:
        unsent = self._unsent.pop(delivery, None)
        if unsent is None:
            self._ready.add(delivery)
        else:
            self._enqueue(unsent[0], delivery[1], unsent[1])

    def _enqueue(self, message: SimulatedMessage, reader: int, sent: Moved) -> None:
        channel = (message.group, message.source, reader, message.num_bytes > EAGER_BYTES)
        queue = self._queues.get(channel)
        if queue is None:
            self._queues[channel] = deque()
            self._begin(channel, message, reader, sent)
        else:
            queue.append((message, reader, sent))

    def _begin(self, channel: Hashable, message: SimulatedMessage, reader: int, sent: Moved) -> None:
        link = self._network.link(message.source, reader)
        began_s = self._simulation.now_s
        is_large = message.num_bytes > EAGER_BYTES
        num_streams = num_stripes(int(message.num_bytes), streams_between(link.rtt_s)) if is_large else 1

        def left() -> None:
            queue = self._queues[channel]
            if queue:
                self._begin(channel, *queue.popleft())
            else:
                del self._queues[channel]
            self._simulation.after(link.rtt_s / 2, lambda: self._arrive(message, reader, began_s))
            sent(began_s)

        self._network.carry(message.source, reader, message.num_bytes, num_streams, left)

    def _arrive(self, message: SimulatedMessage, reader: int, began_s: float) -> None:
        arrived = self._receives.pop((message.name, reader), None)
        if arrived is None:
            self._arrived[message.name, reader] = began_s
        else:
            arrived(began_s)


@dataclass(eq=False, slots=True)
class _PendingReceive:
    message: SimulatedMessage
    reader: int
    arrived: Moved
    expected_s: float | None = None


class SimulatedStore:
    """Members that exchange through a store: windows of puts and gets, and polls at times learned long ago."""

    def __init__(self, network: Network, *, looks: Looks) -> None:
        self._network = network
        self._simulation = network.simulation
        self._looks = looks
        self._uploads: dict[Hashable, _Lane] = {}
        self._downloads: dict[Hashable, _Lane] = {}
        self._stored: set[Hashable] = set()
        self._receives: defaultdict[Hashable, list[_PendingReceive]] = defaultdict(list)
        """Pending receives by the name of a message that is not stored yet."""
        self._sent_indexes: defaultdict[Hashable, set[int]] = defaultdict(set)
        """Indexes of the messages that were sent, by source and call."""
        self._unexpected: defaultdict[Hashable, list[_PendingReceive]] = defaultdict(list)
        """Pending receives by reader, call, and the index of the reader's own message that comes first."""
        self._last_found_s: dict[tuple[int, int], float] = {}
        """When a reader last found a message outside of calls, by reader and source. It then looks for the next one."""

    def send(self, message: SimulatedMessage, sent: Moved) -> None:
        lane = self._lane(self._uploads, (message.group, message.source), UPLOADS)

        def stored(began_s: float) -> None:
            lane.leave(message.num_bytes)
            self._stored.add(message.name)
            self._note_sent(message)
            for pending in self._receives.pop(message.name, ()):
                if pending.expected_s is not None:
                    self._look(pending)
            sent(began_s)

        def begin() -> None:
            done = partial(stored, self._simulation.now_s)
            self._network.put(message.source, message.num_bytes, done)

        lane.enter(message.num_bytes, begin)

    def receive(self, message: SimulatedMessage, reader: int, arrived: Moved, expected_by: int | None = None) -> None:
        pending = _PendingReceive(message, reader, arrived)
        if message.name not in self._stored:
            self._receives[message.name].append(pending)
        if self._looks != "store" or expected_by is None or expected_by in self._sent_indexes[reader, message.call]:
            self._expect(pending)
        else:
            self._unexpected[reader, message.call, expected_by].append(pending)

    def _expect(self, pending: _PendingReceive) -> None:
        pending.expected_s = self._simulation.now_s
        if pending.message.name in self._stored:
            self._look(pending)

    def _note_sent(self, message: SimulatedMessage) -> None:
        if message.send_index is None:
            return
        self._sent_indexes[message.source, message.call].add(message.send_index)
        for pending in self._unexpected.pop((message.source, message.call, message.send_index), ()):
            self._expect(pending)

    def _look(self, pending: _PendingReceive) -> None:
        """Get a message that is stored and expected, at the reader's next poll."""
        message = pending.message
        assert pending.expected_s is not None
        expected_s, line = pending.expected_s, (pending.reader, message.source)
        is_in_line = message.call is None
        if is_in_line:
            expected_s = max(expected_s, self._last_found_s.get(line, 0.0))
        waited_s = self._simulation.now_s - expected_s
        delay_s = 0.0
        if self._looks == "folder":
            delay_s = local_pause(waited_s) / 2 if waited_s > 0 else 0.0
        elif self._looks == "store":
            delay_s = line_delay(waited_s) if is_in_line else settled_delay(waited_s, is_urgent(message.num_bytes))
        lane = self._lane(self._downloads, (message.group, pending.reader), DOWNLOADS)

        def received(began_s: float) -> None:
            lane.leave(message.num_bytes)
            if is_in_line:
                self._last_found_s[line] = self._simulation.now_s
            pending.arrived(began_s)

        def get() -> None:
            self._network.get(pending.reader, message.num_bytes, partial(received, self._simulation.now_s))

        self._simulation.after(delay_s, lambda: lane.enter(message.num_bytes, get))

    def _lane(self, lanes: "dict[Hashable, _Lane]", key: Hashable, window: FlightWindow) -> "_Lane":
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = _Lane(window)
        return lane


class _Lane:
    """A queue of messages, of which a window is in flight."""

    __slots__ = ("_bytes", "_number", "_queue", "_window")

    def __init__(self, window: FlightWindow) -> None:
        self._window = window
        self._number = 0
        self._bytes = 0.0
        self._queue: deque[tuple[float, Done]] = deque()

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
    """Return a callback whose last of `count` calls calls `sent`."""
    num_left = count

    def one(began_s: float) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            sent(began_s)

    return one
