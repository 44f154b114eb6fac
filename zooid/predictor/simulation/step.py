"""Step times from the simulator, which runs the same action lists that members execute."""

import gc
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from zooid.core.plans.plan import OwnTransportName
from zooid.core.plans.stage import StageTimes
from zooid.core.runs.timeline import Interval, Timeline
from zooid.predictor.simulation.clock import Done, Simulation, nothing
from zooid.predictor.simulation.collectives import Collective, all_reduce_graphs, tree_graphs
from zooid.predictor.simulation.layout import Layout
from zooid.predictor.simulation.network import (
    Network,
    SimulatedMessage,
    SimulatedStore,
    SimulatedTcp,
    SimulatedTransport,
)
from zooid.schedule.actions import Action, Kind, Lane, peer_action
from zooid.schedule.buckets import reduces_early
from zooid.schedule.grain_tree import maximal_nodes
from zooid.schedule.pipelines import StepSchedule
from zooid.schedule.step_state import VOTE_ELEMENT_BYTES, vote_elements


@dataclass(frozen=True)
class Noise:
    """Relative random variation of the same work from one step to the next."""

    compute: float = 0.0
    links: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Steps:
    """Several simulations of the same step, each with its own noise."""

    timelines: tuple[Timeline, ...]

    @property
    def timeline(self) -> Timeline:
        """The timeline of the step with the median duration."""
        return sorted(self.timelines, key=lambda timeline: timeline.step_s)[(len(self.timelines) - 1) // 2]

    @property
    def mean_s(self) -> float:
        return statistics.fmean(timeline.step_s for timeline in self.timelines)

    def quantile_s(self, quantile: float) -> float:
        """The quantile of the step times, interpolated between the two nearest."""
        ordered = sorted(timeline.step_s for timeline in self.timelines)
        position = quantile * (len(ordered) - 1)
        low = math.floor(position)
        return ordered[low] + (position - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def simulate_step(schedule: StepSchedule, layout: Layout, last_grain: float = 1.0) -> Timeline:
    """Simulate one step without noise: computing in list order, transfers as soon as they can start."""
    return simulate_steps(schedule, layout, 1, Noise(), last_grain).timeline


def simulate_steps(
    schedule: StepSchedule, layout: Layout, num_steps: int, noise: Noise, last_grain: float = 1.0
) -> Steps:
    """Simulate several steps, each with its own noise.

    `last_grain` is the size of the step's last grain as a fraction of a full one.
    """
    layout = layout.of_replicas(schedule.num_replicas)
    generator = random.Random(noise.seed)
    lists = _Lists(schedule)
    with _no_garbage_collection():
        return Steps(
            tuple(
                _StepSimulation(schedule, lists, layout, noise, generator, last_grain).run() for _ in range(num_steps)
            )
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn garbage collection off: a simulation's objects live until its end, and it would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Lists:
    """The actions of all members by number, and the dependencies between them."""

    def __init__(self, schedule: StepSchedule) -> None:
        self.actions: list[tuple[Action, ...]] = []
        self.texts: list[tuple[str, ...]] = []
        self.num_needs: list[list[int]] = []
        self.allows: list[list[list[int]]] = []
        self.compute: list[list[int]] = []
        self.lanes: list[list[Lane]] = []
        self.number_of: list[dict[Action, int]] = []
        for replica, stages in enumerate(schedule.lists):
            for stage, actions in enumerate(stages):
                numbers = {action: number for number, action in enumerate(actions)}
                needs = schedule.needs[replica][stage]
                allows: list[list[int]] = [[] for _ in actions]
                for number, action in enumerate(actions):
                    for before in needs[action]:
                        allows[numbers[before]].append(number)
                self.actions.append(actions)
                self.texts.append(tuple(map(str, actions)))
                self.number_of.append(numbers)
                self.num_needs.append([len(needs[action]) for action in actions])
                self.allows.append(allows)
                lanes = [action.lane for action in actions]
                self.lanes.append(lanes)
                self.compute.append([number for number, lane in enumerate(lanes) if lane is Lane.COMPUTE])


class _StepSimulation:
    def __init__(
        self,
        schedule: StepSchedule,
        lists: _Lists,
        layout: Layout,
        noise: Noise,
        generator: random.Random,
        last_grain: float,
    ) -> None:
        self._layout = layout
        self._lists = lists
        self._num_stages = schedule.num_stages
        self._num_replicas = schedule.num_replicas
        num_grains = sum(map(len, schedule.grains))
        self._last_grain = (num_grains - 1, last_grain)
        """Number and relative size of the step's last grain."""
        self._num_nodes = tuple(len(maximal_nodes(own, num_grains)) for own in schedule.grains)
        """Number of nodes of the tree over grains that each replica sums alone."""
        self._noise = noise
        self._random = generator
        self._simulation = Simulation()
        rate_factors = {ends: self._factor(noise.links) for ends in layout.links}
        self._network = Network(self._simulation, layout, rate_factors)
        self._transport: SimulatedTransport = (
            SimulatedTcp(self._network) if layout.is_direct else SimulatedStore(self._network, looks=layout.looks)
        )
        members = range(self._num_replicas * self._num_stages)
        self._names = [f"r{member // self._num_stages}s{member % self._num_stages}" for member in members]
        self._missing = [list(counts) for counts in lists.num_needs]
        self._next = [0] * len(members)
        """Index of each member's next computation."""
        self._is_computing = [False] * len(members)
        self._early: set[tuple[int, int]] = set()
        """Reduces that started before the last backward ended, by member and number."""
        self._collectives: dict[Hashable, Collective] = {}
        self._joined: defaultdict[Hashable, list[Done]] = defaultdict(list)
        self._intervals: list[Interval] = []
        self._num_left = sum(map(len, lists.actions))

    def run(self) -> Timeline:
        for member, lanes in enumerate(self._lists.lanes):
            missing = self._missing[member]
            for number, lane in enumerate(lanes):
                if lane is not Lane.COMPUTE and missing[number] == 0:
                    self._begin(member, number)
            self._compute_next(member)
        self._simulation.run()
        assert self._num_left == 0, "a checked schedule always runs to its end"
        return Timeline(intervals=tuple(self._intervals))

    def _compute_next(self, member: int) -> None:
        """Start the member's next computation if its inputs are ready."""
        if self._is_computing[member]:
            return
        computations = self._lists.compute[member]
        index = self._next[member]
        if index < len(computations) and self._missing[member][computations[index]] == 0:
            self._next[member] = index + 1
            self._is_computing[member] = True
            self._begin(member, computations[index])

    def _begin(self, member: int, number: int) -> None:
        if (member, number) in self._early:
            return
        action = self._lists.actions[member][number]
        done = partial(self._finish, member, number, self._simulation.now_s)
        stage = self._stage(member)
        match action.kind:
            case Kind.FORWARD:
                self._compute(member, stage.forward_s * self._size_of(action), done)
            case Kind.BACKWARD:
                self._backward(member, number, done)
            case Kind.SEND_FORWARD | Kind.SEND_BACKWARD:
                self._transport.send(self._message(member, action), partial(self._finish, member, number))
            case Kind.RECEIVE_FORWARD | Kind.RECEIVE_BACKWARD:
                sent = peer_action(action)
                assert sent is not None
                source = member + sent.stage - action.stage
                self._transport.receive(self._message(source, sent), member, partial(self._finish, member, number))
            case Kind.REDUCE:
                self._reduce(member, action, done)
            case Kind.SHARE:
                self._share(member, action, done)
            case Kind.COMMIT:
                self._commit(member, lambda: self._compute(member, stage.update_s, done))

    def _finish(self, member: int, number: int, start_s: float) -> None:
        lanes = self._lists.lanes[member]
        lane = lanes[number]
        self._intervals.append(
            Interval(
                member=self._names[member],
                lane=lane.value,
                action=self._lists.texts[member][number],
                start_s=start_s,
                end_s=self._simulation.now_s,
            )
        )
        self._num_left -= 1
        if lane is Lane.COMPUTE:
            self._is_computing[member] = False
        missing = self._missing[member]
        for after in self._lists.allows[member][number]:
            missing[after] -= 1
            if missing[after] == 0 and lanes[after] is not Lane.COMPUTE:
                self._begin(member, after)
        self._compute_next(member)

    def _message(self, source: int, action: Action) -> SimulatedMessage:
        """The message of a send action across the cut after its stage (forward) or before it (backward)."""
        is_forward = action.kind is Kind.SEND_FORWARD
        stages = self._layout.stages[source // self._num_stages]
        return SimulatedMessage(
            group="all",
            name=(source, action.kind, action.number),
            source=source,
            readers=(source + 1 if is_forward else source - 1,),
            num_bytes=stages[action.stage if is_forward else action.stage - 1].out_bytes * self._size_of(action),
        )

    def _backward(self, member: int, number: int, done: Done) -> None:
        """Compute a backward; the first stage's last one starts the reduce of each bucket once it is complete."""
        stage = self._stage(member)
        actions = self._lists.actions[member]
        numbers = self._lists.number_of[member]
        is_last = not any(action.kind is Kind.BACKWARD for action in actions[number + 1 :])
        stage_number = member % self._num_stages
        backward_s = stage.backward_s * self._size_of(actions[number])
        if not is_last or not reduces_early(stage_number) or self._num_replicas == 1:
            self._compute(member, backward_s, done)
            return
        whole_s = backward_s * self._factor(self._noise.compute)

        def compute_from(bucket: int, fraction: float) -> None:
            if bucket == len(stage.buckets) - 1:
                self._network.compute(member, (1 - fraction) * whole_s, done)
                return
            end_fraction = max(fraction, stage.buckets[bucket].at_share)

            def reduce_bucket() -> None:
                reduce = numbers[Action(stage_number, Kind.REDUCE, bucket)]
                self._begin(member, reduce)
                self._early.add((member, reduce))
                compute_from(bucket + 1, end_fraction)

            self._network.compute(member, (end_fraction - fraction) * whole_s, reduce_bucket)

        compute_from(0, 0.0)

    def _reduce(self, member: int, action: Action, done: Done) -> None:
        """Reduce one bucket over the replicas of the stage, after the processor time of gathering and adding it."""
        assert action.number is not None
        stage = self._stage(member)
        num_bytes = stage.buckets[action.number].num_bytes
        members = range(action.stage, self._num_replicas * self._num_stages, self._num_stages)
        if len(members) == 1 or num_bytes == 0:
            self._simulation.after(0.0, done)
            return
        gathering_s = stage.reduce_s * num_bytes / sum(bucket.num_bytes for bucket in stage.buckets)
        group = ("stage", action.stage)
        join = partial(
            self._join, (group, action.number), group, members, num_bytes, None, member, done, is_reduce=True
        )
        self._network.compute(member, gathering_s, join)

    def _share(self, member: int, action: Action, done: Done) -> None:
        assert action.number is not None
        tie = self._layout.ties[action.number]
        first = member - member % self._num_stages
        group = ("tie", first, action.number)
        self._join(group, group, [first + stage for stage in tie.stages], tie.num_bytes, None, member, done)

    def _commit(self, member: int, done: Done) -> None:
        if not self._layout.has_copies:
            self._vote(member, done)
            return
        copy = member + self._num_stages
        gradients = SimulatedMessage(
            group=("copies", member),
            name=("gradients", member),
            source=member,
            readers=(copy,),
            num_bytes=sum(bucket.num_bytes for bucket in self._stage(member).buckets),
        )
        update_s = self._stage(member).update_s
        self._transport.receive(
            gradients, copy, lambda _: self._vote(copy, lambda: self._compute(copy, update_s, nothing))
        )
        self._transport.send(gradients, lambda _: self._vote(member, done))

    def _vote(self, member: int, done: Done) -> None:
        members = range(len(self._network.sites))
        if len(members) == 1:
            done()
        else:
            num_bytes = vote_elements(self._num_stages, self._num_replicas) * VOTE_ELEMENT_BYTES
            self._join("commit", "all", members, num_bytes, VOTE_ELEMENT_BYTES, member, done)

    def _join(
        self,
        name: Hashable,
        group: Hashable,
        members: "range | list[int]",
        num_bytes: int,
        element_bytes: int | None,
        member: int,
        done: Done,
        *,
        is_reduce: bool = False,
    ) -> None:
        library = self._layout.library
        if library is not None:
            joined = self._joined[name]
            joined.append(done)
            if len(joined) == len(members):
                for joined_done in joined:
                    self._simulation.after(library(num_bytes, len(members)), joined_done)
            return
        collective = self._collectives.get(name)
        if collective is None:
            size = element_bytes or self._layout.parameter_element_bytes
            transport: OwnTransportName = "tcp" if self._layout.is_direct else "store"
            latency_s = None
            if self._layout.is_direct and len(members) > 2:  # the first two members measure it at the rendezvous
                latency_s = self._network.link(members[1], members[0]).rtt_s
            if self._layout.reproducible and is_reduce:
                graphs = tree_graphs(transport, num_bytes // size, self._num_nodes)
            else:
                graphs = all_reduce_graphs(
                    transport, self._layout.all_reduce, len(members), latency_s, num_bytes // size, size
                )
            collective = Collective(name, group, members, graphs, size, self._transport)
            self._collectives[name] = collective
        collective.join(member, done)

    def _compute(self, member: int, seconds: float, done: Done) -> None:
        self._network.compute(member, seconds * self._factor(self._noise.compute), done)

    def _size_of(self, action: Action) -> float:
        """Size of an action's grain, as a fraction of a full one."""
        number, size = self._last_grain
        return size if action.number == number else 1.0

    def _factor(self, spread: float) -> float:
        """Random slowdown factor with mean 1 and this relative spread."""
        return math.exp(self._random.gauss(-spread * spread / 2, spread)) if spread else 1.0

    def _stage(self, member: int) -> StageTimes:
        return self._layout.stages[member // self._num_stages][member % self._num_stages]
