"""Times one step by running its action lists, the very ones that members execute, in simulated time."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from zooid.core.link import Link
from zooid.core.timeline import Interval, Timeline
from zooid.predictor.shared import Resource, Simulation
from zooid.predictor.stages import StageTimes, Tie
from zooid.schedule.actions import Action, Kind, Lane, local_dependencies, peer_action
from zooid.schedule.collectives import DOWNLOADS, UPLOADS, TransferList, choose_all_reduce
from zooid.schedule.pipelines import StepSchedule
from zooid.schedule.steps import Vote

VOTE_ELEMENT_BYTES = 8
"""A commit's all-reduce carries a Vote in float64."""


@dataclass(frozen=True)
class Layout:
    """What the lists run on."""

    stages: tuple[StageTimes, ...]
    upload: Link
    """From a member to the store."""
    download: Link
    """From the store to a member."""
    host_cores: float | None
    """Cores that all members share, where they run on one machine; None where each has its own."""
    all_reduce: str
    """Name of the algorithm, as the plan has it."""
    ties: tuple[Tie, ...] = ()
    """What several stages share; summed between them after each stage's own reduce."""
    parameter_element_bytes: int = 4


Seat = tuple[int, int]
Done = Callable[[], None]


def simulate_step(schedule: StepSchedule, layout: Layout) -> Timeline:
    """The timeline of one step: lanes in list order, side by side; transfers through the store."""
    return _StepSimulation(schedule, layout).run()


class _StepSimulation:
    def __init__(self, schedule: StepSchedule, layout: Layout) -> None:
        self._schedule = schedule
        self._layout = layout
        self._simulation = Simulation()
        seats = [(a, b) for a in range(schedule.num_replicas) for b in range(schedule.num_stages)]
        shared = Resource(capacity=layout.host_cores, limit=1.0) if layout.host_cores else None
        self._cores = {seat: shared or Resource(capacity=1.0, limit=1.0) for seat in seats}
        up, down = layout.upload.bandwidth_bytes_per_s, layout.download.bandwidth_bytes_per_s
        self._uplinks = {seat: Resource(capacity=up, limit=up) for seat in seats}
        self._downlinks = {seat: Resource(capacity=down, limit=down) for seat in seats}
        self._queues: dict[tuple[Seat, Lane], list[Action]] = {
            (seat, lane): [x for x in reversed(schedule.lists[seat[0]][seat[1]]) if x.lane is lane]
            for seat in seats
            for lane in Lane
        }
        self._busy: set[tuple[Seat, Lane]] = set()
        self._done: set[tuple[Seat, Action]] = set()
        self._collectives: dict[str, _Collective] = {}
        self._intervals: list[Interval] = []

    def run(self) -> Timeline:
        for seat, lane in self._queues:
            self._start_next(seat, lane)
        self._simulation.run()
        assert not any(self._queues.values()), "a checked schedule always runs to its end"
        return Timeline(intervals=tuple(self._intervals))

    def _start_next(self, seat: Seat, lane: Lane) -> None:
        queue = self._queues[seat, lane]
        if not queue or (seat, lane) in self._busy or not self._is_ready(seat, queue[-1]):
            return
        action = queue.pop()
        self._busy.add((seat, lane))
        start_s = self._simulation.now_s

        def done() -> None:
            self._intervals.append(
                Interval(
                    member=f"r{seat[0]}s{seat[1]}",
                    lane=lane.value,
                    action=str(action),
                    start_s=start_s,
                    end_s=self._simulation.now_s,
                )
            )
            self._busy.remove((seat, lane))
            self._done.add((seat, action))
            for neighbour in ((seat[0], seat[1] - 1), seat, (seat[0], seat[1] + 1)):
                if neighbour in self._cores:
                    for other in Lane:
                        self._start_next(neighbour, other)

        self._perform(seat, action, done)

    def _is_ready(self, seat: Seat, action: Action) -> bool:
        grains = self._schedule.grains[seat[0]]
        if any((seat, d) not in self._done for d in local_dependencies(action, self._schedule.num_stages, grains)):
            return False
        sent = peer_action(action)
        return sent is None or ((seat[0], sent.stage), sent) in self._done

    def _perform(self, seat: Seat, action: Action, done: Done) -> None:
        stage = self._layout.stages[seat[1]]
        match action.kind:
            case Kind.FORWARD:
                self._simulation.work(self._cores[seat], stage.forward_s, done)
            case Kind.BACKWARD:
                self._simulation.work(self._cores[seat], stage.backward_s, done)
            case Kind.SEND_FORWARD:
                self._upload(seat, stage.out_bytes, done)
            case Kind.RECEIVE_BACKWARD:
                self._download(seat, stage.out_bytes, done)
            case Kind.RECEIVE_FORWARD | Kind.SEND_BACKWARD:
                num_bytes = self._layout.stages[seat[1] - 1].out_bytes
                move = self._download if action.kind is Kind.RECEIVE_FORWARD else self._upload
                move(seat, num_bytes, done)
            case Kind.REDUCE:
                self._join_reduce(seat, stage, done)
            case Kind.COMMIT:
                self._join_commit(seat, lambda: self._simulation.work(self._cores[seat], stage.update_s, done))

    def _upload(self, seat: Seat, num_bytes: float, done: Done) -> None:
        self._move(self._layout.upload, self._uplinks[seat], seat, num_bytes, done)

    def _download(self, seat: Seat, num_bytes: float, done: Done) -> None:
        self._move(self._layout.download, self._downlinks[seat], seat, num_bytes, done)

    def _move(self, link: Link, resource: Resource, seat: Seat, num_bytes: float, done: Done) -> None:
        """Latency, then bytes at the link's rate; meanwhile the message takes its processor time from computing."""
        self._simulation.work(self._cores[seat], link.cpu_s + num_bytes * link.cpu_s_per_byte, lambda: None)
        self._simulation.after(link.rtt_s, lambda: self._simulation.work(resource, num_bytes, done))

    def _join_reduce(self, seat: Seat, stage: StageTimes, done: Done) -> None:
        """Gradients and, after them, statistics: one all-reduce each over the replicas of the stage."""
        seats = [(replica, seat[1]) for replica in range(self._schedule.num_replicas)]

        def reduce(kind: str, num_bytes: int, then: Done) -> None:
            if num_bytes == 0 or len(seats) == 1:
                then()
            else:
                self._join(f"{kind}-{seat[1]}", seats, num_bytes, self._layout.parameter_element_bytes, seat, then)

        def transfer() -> None:
            reduce("gradients", stage.parameter_bytes, lambda: reduce("statistics", stage.buffer_bytes, share))

        ties = [tie for tie in self._layout.ties if seat[1] in tie.stages]

        def share() -> None:
            """Between the stages of this replica that use the same parameters, one tie after the other."""
            if not ties:
                done()
                return
            tie = ties.pop(0)
            users = [(seat[0], number) for number in tie.stages]
            name = f"ties-{seat[0]}-{tie.stages}"
            self._join(name, users, tie.num_bytes, self._layout.parameter_element_bytes, seat, share)

        self._simulation.work(self._cores[seat], stage.reduce_s, transfer)

    def _join_commit(self, seat: Seat, done: Done) -> None:
        if len(self._cores) == 1:
            done()
        else:
            num_bytes = len(Vote().values()) * VOTE_ELEMENT_BYTES
            self._join("commit", list(self._cores), num_bytes, VOTE_ELEMENT_BYTES, seat, done)

    def _join(self, name: str, seats: list[Seat], num_bytes: int, element_bytes: int, seat: Seat, done: Done) -> None:
        if name not in self._collectives:
            num_elements = num_bytes // element_bytes
            transfers = choose_all_reduce(num_elements, element_bytes, len(seats), self._layout.all_reduce)
            self._collectives[name] = _Collective(
                transfers, element_bytes, lambda rank, size, then: self._upload(seats[rank], size, then),
                lambda rank, size, then: self._download(seats[rank], size, then),
            )  # fmt: skip
        self._collectives[name].join(seats.index(seat), done)


Move = Callable[[int, float, Done], None]


class _Collective:
    """A transfer list in simulated time: a rank sends what it may and takes what is there, from when it joins, round
    by round."""

    def __init__(self, transfers: TransferList, element_bytes: int, upload: Move, download: Move) -> None:
        self._transfers = transfers
        self._element_bytes = element_bytes
        self._upload = upload
        self._download = download
        self._joined: dict[int, Done] = {}
        self._stored: set[int] = set()
        self._taken: defaultdict[int, set[int]] = defaultdict(set)
        self._started: set[tuple[str, int, int]] = set()
        self._active: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        """By direction and rank: sizes of the messages on their way."""
        self._round: dict[int, int] = {}
        self._left: dict[int, list[int]] = {}
        """By rank: sends and takes of each round that are not done."""

    def join(self, rank: int, done: Done) -> None:
        self._joined[rank] = done
        own = [t.send_round for t in self._transfers if t.source == rank]
        own += [t.take_round for t in self._transfers if rank in t.readers]
        self._left[rank] = [own.count(number) for number in range(max(own, default=-1) + 1)]
        self._round[rank] = 0
        self._progress(rank)

    def _progress(self, rank: int) -> None:
        left = self._left[rank]
        while self._round[rank] < len(left) and left[self._round[rank]] == 0:
            self._round[rank] += 1
        if self._round[rank] == len(left):
            self._joined.pop(rank, lambda: None)()
            return
        now = self._round[rank]
        for number, transfer in enumerate(self._transfers):
            is_free = self._taken[rank].issuperset(transfer.after)
            if transfer.source == rank and transfer.send_round == now and is_free:
                self._start("up", rank, number)
            if rank in transfer.readers and transfer.take_round == now and number in self._stored:
                self._start("down", rank, number)

    def _start(self, direction: str, rank: int, number: int) -> None:
        """Begin a message, unless it has begun or as many as may are on their way."""
        size = float(self._transfers[number].num_elements * self._element_bytes)
        way = self._active[direction, rank]
        window = UPLOADS if direction == "up" else DOWNLOADS
        if (direction, rank, number) in self._started or not window.admits(len(way), sum(way), size):
            return
        self._started.add((direction, rank, number))
        way.append(size)

        def done() -> None:
            transfer = self._transfers[number]
            way.remove(size)
            if direction == "up":
                self._stored.add(number)
                self._left[rank][transfer.send_round] -= 1
                for reader in transfer.readers:
                    if reader in self._joined:
                        self._progress(reader)
            else:
                self._taken[rank].add(number)
                self._left[rank][transfer.take_round] -= 1
            self._progress(rank)

        (self._upload if direction == "up" else self._download)(rank, size, done)
