"""Times one step by running its action lists, the very ones that members execute, in simulated time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zooid.core.link import Link
from zooid.core.stage import StageTimes, Tie
from zooid.core.timeline import Interval, Timeline
from zooid.predictor.collectives import Collective
from zooid.predictor.shared import Resource, Simulation
from zooid.schedule.actions import Action, Kind, Lane, peer_action
from zooid.schedule.buckets import reduces_early
from zooid.schedule.collectives import UPLOADS, choose_all_reduce
from zooid.schedule.pipelines import StepSchedule
from zooid.schedule.steps import Vote

VOTE_ELEMENT_BYTES = 8
"""A commit's all-reduce carries a Vote in float64."""


@dataclass(frozen=True)
class Layout:
    """What the lists run on."""

    stages: tuple[StageTimes, ...]
    upload: Link
    """From a member to the store; or to another member, where they are connected."""
    download: Link
    """From the store to a member; or from another member."""
    host_cores: float | None
    """Cores that all members share, where they run on one machine; None where each has its own."""
    all_reduce: str
    """Name of the algorithm, as the plan has it."""
    ties: tuple[Tie, ...] = ()
    """What several stages share; summed between them after each stage's own reduce."""
    is_direct: bool = False
    """Whether members are connected: a message is then on its way up and down at the same time."""
    parameter_element_bytes: int = 4


Seat = tuple[int, int]
Done = Callable[[], None]


def simulate_step(schedule: StepSchedule, layout: Layout) -> Timeline:
    """The timeline of one step: computing in list order, transfers as soon as they can begin."""
    return _StepSimulation(schedule, layout).run()


class _StepSimulation:
    def __init__(self, schedule: StepSchedule, layout: Layout) -> None:
        self._schedule = schedule
        self._layout = layout
        self._simulation = Simulation()
        self._seats = [(a, b) for a in range(schedule.num_replicas) for b in range(schedule.num_stages)]
        shared = Resource(capacity=layout.host_cores, limit=1.0) if layout.host_cores else None
        self._cores = {seat: shared or Resource(capacity=1.0, limit=1.0) for seat in self._seats}
        up, down = layout.upload.bandwidth_bytes_per_s, layout.download.bandwidth_bytes_per_s
        self._uplinks = {seat: Resource(capacity=up, limit=up) for seat in self._seats}
        self._downlinks = {seat: Resource(capacity=down, limit=down) for seat in self._seats}
        self._left = {seat: list(schedule.lists[seat[0]][seat[1]]) for seat in self._seats}
        self._computing: set[Seat] = set()
        self._sending: dict[Seat, list[float]] = {seat: [] for seat in self._seats}
        self._done: set[tuple[Seat, Action]] = set()
        self._ready_buckets: set[tuple[Seat, int | None]] = set()
        """Those that are complete before the last backward ends."""
        self._collectives: dict[str, Collective] = {}
        self._intervals: list[Interval] = []
        self._last_backward = {seat: self._last_of(seat, Kind.BACKWARD) for seat in self._seats}

    def run(self) -> Timeline:
        for seat in self._seats:
            self._start_all(seat)
        self._simulation.run()
        assert not any(self._left.values()), "a checked schedule always runs to its end"
        return Timeline(intervals=tuple(self._intervals))

    def _start_all(self, seat: Seat) -> None:
        """Begin whatever can begin on this member."""
        for action in list(self._startable(seat)):
            self._left[seat].remove(action)
            self._begin(seat, action)

    def _startable(self, seat: Seat) -> Iterator[Action]:
        """The next computation, the next collective, and every message, if what they need is there."""
        seen: set[Lane] = {Lane.COMPUTE} if seat in self._computing else set()
        sending = list(self._sending[seat])
        for action in self._left[seat]:
            if action.lane in seen or not self._is_ready(seat, action):
                if action.lane in (Lane.COMPUTE, Lane.REDUCE):
                    seen.add(action.lane)
                continue
            if action.lane is Lane.UPLINK:
                num_bytes = self._message_bytes(seat, action)
                if not UPLOADS.admits(len(sending), sum(sending), num_bytes):
                    seen.add(Lane.UPLINK)
                    continue
                sending.append(num_bytes)
            if action.lane is Lane.COMPUTE:
                seen.add(Lane.COMPUTE)
            yield action

    def _begin(self, seat: Seat, action: Action) -> None:
        start_s = self._simulation.now_s
        if action.lane is Lane.COMPUTE:
            self._computing.add(seat)
        if action.lane is Lane.UPLINK:
            self._sending[seat].append(self._message_bytes(seat, action))

        def done() -> None:
            self._intervals.append(
                Interval(
                    member=f"r{seat[0]}s{seat[1]}",
                    lane=action.lane.value,
                    action=str(action),
                    start_s=start_s,
                    end_s=self._simulation.now_s,
                )
            )
            if action.lane is Lane.COMPUTE:
                self._computing.remove(seat)
            if action.lane is Lane.UPLINK:
                self._sending[seat].remove(self._message_bytes(seat, action))
            self._done.add((seat, action))
            for neighbour in ((seat[0], seat[1] - 1), seat, (seat[0], seat[1] + 1)):
                if neighbour in self._left:
                    self._start_all(neighbour)

        self._perform(seat, action, done)

    def _is_ready(self, seat: Seat, action: Action) -> bool:
        if action.kind is Kind.REDUCE and (seat, action.number) in self._ready_buckets:
            return True
        needs = self._schedule.needs[seat[0]][seat[1]][action]
        if any((seat, before) not in self._done for before in needs):
            return False
        sent = peer_action(action)
        return sent is None or ((seat[0], sent.stage), sent) in self._done

    def _perform(self, seat: Seat, action: Action, done: Done) -> None:
        stage = self._stage(seat)
        match action.kind:
            case Kind.FORWARD:
                self._compute(seat, stage.forward_s, done)
            case Kind.BACKWARD:
                self._backward(seat, action, done)
            case Kind.SEND_FORWARD | Kind.SEND_BACKWARD:
                self._send(seat, action, done)
            case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
                self._take(seat, action, done)
            case Kind.REDUCE:
                self._join_reduce(seat, action, done)
            case Kind.SHARE:
                assert action.number is not None
                tie = self._layout.ties[action.number]
                users = [(seat[0], number) for number in tie.stages]
                element_bytes = self._layout.parameter_element_bytes
                self._join(f"tie-{seat[0]}-{action.number}", users, tie.num_bytes, element_bytes, seat, done)
            case Kind.COMMIT:
                self._join_commit(seat, lambda: self._compute(seat, stage.update_s, done))

    def _backward(self, seat: Seat, action: Action, done: Done) -> None:
        """The last one completes bucket after bucket, and each begins its way at once."""
        stage = self._stage(seat)
        if action != self._last_backward[seat] or not reduces_early(seat[1]):
            self._compute(seat, stage.backward_s, done)
            return
        moments = [bucket.at_share for bucket in stage.buckets]

        def go_on(number: int, share: float) -> None:
            if number == len(moments):
                self._compute(seat, (1 - share) * stage.backward_s, done)
                return
            reached = max(share, moments[number])

            def is_ready() -> None:
                self._ready_buckets.add((seat, number))
                self._start_all(seat)
                go_on(number + 1, reached)

            self._compute(seat, (reached - share) * stage.backward_s, is_ready)

        go_on(0, 0.0)

    def _send(self, seat: Seat, action: Action, done: Done) -> None:
        num_bytes = self._message_bytes(seat, action)
        if not self._layout.is_direct:
            self._move(self._layout.upload, self._uplinks[seat], seat, num_bytes, done)
            return
        target = (seat[0], seat[1] + (1 if action.kind is Kind.SEND_FORWARD else -1))
        self._pass(seat, target, num_bytes, done)

    def _take(self, seat: Seat, action: Action, done: Done) -> None:
        """Through a store, it comes after it was sent; between connected members, it has come when it was sent."""
        if self._layout.is_direct:
            self._simulation.after(0.0, done)
            return
        num_bytes = self._message_bytes(seat, action)
        self._move(self._layout.download, self._downlinks[seat], seat, num_bytes, done)

    def _message_bytes(self, seat: Seat, action: Action) -> float:
        """What crosses the cut behind this stage, or the one before it."""
        is_behind = action.kind in (Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD)
        return self._layout.stages[seat[1] if is_behind else seat[1] - 1].out_bytes

    def _move(self, link: Link, resource: Resource, seat: Seat, num_bytes: float, done: Done) -> None:
        """Latency, then bytes at the link's rate; meanwhile the message takes its processor time from computing."""
        self._compute(seat, link.cpu_s + num_bytes * link.cpu_s_per_byte, lambda: None)
        self._simulation.after(link.rtt_s, lambda: self._simulation.work(resource, num_bytes, done))

    def _pass(self, source: Seat, target: Seat, num_bytes: float, done: Done) -> None:
        """Half a round trip, then both ends' links at the same time; the slower one decides."""
        link = self._layout.upload
        left = 2

        def one_end() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        def begin() -> None:
            self._simulation.work(self._uplinks[source], num_bytes, one_end)
            self._simulation.work(self._downlinks[target], num_bytes, one_end)

        for seat in (source, target):
            self._compute(seat, link.cpu_s + num_bytes * link.cpu_s_per_byte, lambda: None)
        self._simulation.after(link.rtt_s / 2, begin)

    def _join_reduce(self, seat: Seat, action: Action, done: Done) -> None:
        """One bucket over the replicas of the stage; gathering and adding takes processor time first."""
        assert action.number is not None
        stage = self._stage(seat)
        num_bytes = stage.buckets[action.number].num_bytes
        seats = [(replica, seat[1]) for replica in range(self._schedule.num_replicas)]
        if len(seats) == 1 or num_bytes == 0:
            self._simulation.after(0.0, done)
            return
        name = f"reduce-{seat[1]}-{action.number}"
        element_bytes = self._layout.parameter_element_bytes
        all_bytes = sum(bucket.num_bytes for bucket in stage.buckets)
        gathering_s = stage.reduce_s * num_bytes / all_bytes
        self._compute(seat, gathering_s, lambda: self._join(name, seats, num_bytes, element_bytes, seat, done))

    def _join_commit(self, seat: Seat, done: Done) -> None:
        if len(self._seats) == 1:
            done()
        else:
            num_bytes = len(Vote().values()) * VOTE_ELEMENT_BYTES
            self._join("commit", self._seats, num_bytes, VOTE_ELEMENT_BYTES, seat, done)

    def _join(self, name: str, seats: list[Seat], num_bytes: int, element_bytes: int, seat: Seat, done: Done) -> None:
        if name not in self._collectives:
            num_elements = num_bytes // element_bytes
            transfers = choose_all_reduce(num_elements, element_bytes, len(seats), self._layout.all_reduce)

            def upload(rank: int, reader: int, size: float, then: Done) -> None:
                if self._layout.is_direct:
                    self._pass(seats[rank], seats[reader], size, then)
                else:
                    self._move(self._layout.upload, self._uplinks[seats[rank]], seats[rank], size, then)

            def download(rank: int, size: float, then: Done) -> None:
                if self._layout.is_direct:
                    self._simulation.after(0.0, then)
                else:
                    self._move(self._layout.download, self._downlinks[seats[rank]], seats[rank], size, then)

            self._collectives[name] = Collective(transfers, element_bytes, upload, download, self._layout.is_direct)
        self._collectives[name].join(seats.index(seat), done)

    def _compute(self, seat: Seat, seconds: float, done: Done) -> None:
        self._simulation.work(self._cores[seat], seconds, done)

    def _stage(self, seat: Seat) -> StageTimes:
        return self._layout.stages[seat[1]]

    def _last_of(self, seat: Seat, kind: Kind) -> Action | None:
        own = [action for action in self._left[seat] if action.kind is kind]
        return own[-1] if own else None
