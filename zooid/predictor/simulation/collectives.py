"""Collectives in simulated time: each rank runs its transfer list as a real member does, without the bytes."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import lru_cache, partial

from zooid.core.plans.plan import AllReduceName, OwnTransportName
from zooid.predictor.simulation.clock import Done
from zooid.predictor.simulation.network import Group, SimulatedMessage, SimulatedTransport
from zooid.schedule.all_reduce_choice import AllReduceChoice
from zooid.schedule.rank_program import RankProgram
from zooid.schedule.transfer_lists import TransferList, tree_reduce


class RankGraph:
    """A rank's program, with the dependencies between its transfers as counts."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program
        self.span_of = {number: index for index, span in enumerate(program.sums) for number in span.parts}
        self.spans_after_send: defaultdict[int, list[int]] = defaultdict(list)
        self.span_needs = []
        for index, span in enumerate(program.sums):
            self.span_needs.append(len(span.parts) + len(span.sent_before))
            for number in span.sent_before:
                self.spans_after_send[number].append(index)
        self.send_needs: dict[int, int] = {}
        self.allows: defaultdict[int, list[int]] = defaultdict(list)
        for program_round in program.rounds:
            for number in program_round.sends:
                earlier = program.transfers[number].after
                self.send_needs[number] = len(earlier)
                for before in earlier:
                    self.allows[before].append(number)


@lru_cache(maxsize=64)
def all_reduce_graphs(
    transport: OwnTransportName,
    preferred: AllReduceName,
    num_ranks: int,
    latency_s: float | None,
    num_elements: int,
    element_bytes: int,
) -> list[RankGraph]:
    """Graphs of all ranks for the all-reduce that real members would choose."""
    choice = AllReduceChoice(transport, preferred, num_ranks, latency_s)
    return _graphs(choice.transfers(num_elements, element_bytes), num_ranks, transport)


@lru_cache(maxsize=64)
def tree_graphs(transport: OwnTransportName, num_elements: int, num_nodes: tuple[int, ...]) -> list[RankGraph]:
    """Graphs of all ranks for a reduce along a tree over grains; `num_nodes` is each rank's number of tree nodes."""
    return _graphs(tree_reduce(num_elements, num_nodes), len(num_nodes), transport)


def _graphs(transfers: TransferList, num_ranks: int, transport: OwnTransportName) -> list[RankGraph]:
    return [RankGraph(program) for program in RankProgram.of_all(transfers, num_ranks, in_rounds=transport == "store")]


class Collective:
    """One collective call; each member starts its part when it joins."""

    def __init__(
        self,
        name: Hashable,
        group: Group,
        members: Sequence[int],
        graphs: Sequence[RankGraph],
        element_bytes: int,
        transport: SimulatedTransport,
    ) -> None:
        self._graphs = graphs
        self._members = members
        self._transport = transport
        program = graphs[0].program
        self.messages = [
            SimulatedMessage(
                group=group,
                name=(name, number),
                source=members[transfer.source],
                readers=tuple(members[reader] for reader in transfer.readers),
                num_bytes=transfer.num_elements * element_bytes,
                call=name,
                send_index=program.send_index[number],
            )
            for number, transfer in enumerate(program.transfers)
        ]

    def join(self, member: int, done: Done) -> None:
        graph = self._graphs[self._members.index(member)]
        _RankCall(self.messages, graph, member, self._transport, done).next_round()


class _RankCall:
    """One rank's part of a collective call."""

    def __init__(
        self,
        messages: list[SimulatedMessage],
        graph: RankGraph,
        member: int,
        transport: SimulatedTransport,
        done: Done,
    ) -> None:
        self._messages = messages
        self._graph = graph
        self._member = member
        self._transport = transport
        self._done = done
        self._round = -1
        self._num_left = 0
        self._blocked_sends: set[int] = set()
        """Sends of this round that wait for other transfers."""
        self._span_needs = list(graph.span_needs)
        self._send_needs = dict(graph.send_needs)

    def next_round(self) -> None:
        rounds = self._graph.program.rounds
        while self._num_left == 0:
            self._round += 1
            if self._round >= len(rounds):
                if self._round == len(rounds):
                    self._done()
                return
            current = rounds[self._round]
            self._num_left = len(current.sends) + len(current.takes)
            ready = [number for number in current.sends if self._send_needs[number] == 0]
            self._blocked_sends = set(current.sends).difference(ready)
            expected_by = self._graph.program.expected_by
            for number in ready:
                self._send(number)
            for number in current.takes:
                arrived = partial(self._on_arrival, number)
                self._transport.receive(self._messages[number], self._member, arrived, expected_by.get(number))

    def _send(self, number: int) -> None:
        self._transport.send(self._messages[number], partial(self._on_sent, number))

    def _on_sent(self, number: int, began_s: float) -> None:
        self._num_left -= 1
        for span in self._graph.spans_after_send.get(number, ()):
            self._count_down(span)
        self.next_round()

    def _on_arrival(self, number: int, began_s: float) -> None:
        self._num_left -= 1
        span = self._graph.span_of.get(number)
        if span is None:
            self._unblock((number,))
        else:
            self._count_down(span)
        self.next_round()

    def _count_down(self, span: int) -> None:
        self._span_needs[span] -= 1
        if self._span_needs[span] == 0:
            self._unblock(self._graph.program.sums[span].parts)

    def _unblock(self, numbers: Sequence[int]) -> None:
        """Start the sends that waited only for these transfers."""
        for number in numbers:
            for send in self._graph.allows.get(number, ()):
                self._send_needs[send] -= 1
                if self._send_needs[send] == 0 and send in self._blocked_sends:
                    self._blocked_sends.remove(send)
                    self._send(send)
