"""A collective's transfer list in simulated time: what real members' calls do, without the bytes."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import lru_cache, partial

from zooid.core.plans.plan import AllReduceName, OwnTransportName
from zooid.predictor.simulation.clock import Done
from zooid.predictor.simulation.network import Group, Message, Passing
from zooid.schedule.all_reduce_choice import AllReduceChoice
from zooid.schedule.rank_program import RankProgram
from zooid.schedule.transfer_lists import tree_reduce


class _Part:
    """A rank's program, with what each of its transfers allows."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program
        self.span_of = {number: at for at, span in enumerate(program.sums) for number in span.parts}
        self.spans_after_send: defaultdict[int, list[int]] = defaultdict(list)
        self.span_needs = []
        for at, span in enumerate(program.sums):
            self.span_needs.append(len(span.parts) + len(span.sent_before))
            for number in span.sent_before:
                self.spans_after_send[number].append(at)
        self.send_needs: dict[int, int] = {}
        self.allows: defaultdict[int, list[int]] = defaultdict(list)
        for each in program.rounds:
            for number in each.sends:
                before = program.transfers[number].after
                self.send_needs[number] = len(before)
                for earlier in before:
                    self.allows[earlier].append(number)


@lru_cache(maxsize=64)
def parts_of(
    transport: OwnTransportName,
    preferred: AllReduceName,
    num_ranks: int,
    latency_s: float | None,
    num_elements: int,
    element_bytes: int,
) -> list[_Part]:
    """All ranks' parts of the all-reduce that real members would choose."""
    choice = AllReduceChoice(transport, preferred, num_ranks, latency_s)
    transfers = choice.transfers(num_elements, element_bytes)
    return [_Part(program) for program in RankProgram.of_all(transfers, num_ranks, in_rounds=transport == "store")]


@lru_cache(maxsize=64)
def tree_parts_of(transport: OwnTransportName, num_elements: int, num_nodes: tuple[int, ...]) -> list[_Part]:
    """All ranks' parts of a reduce along a tree over grains, of whose nodes each rank has so many."""
    transfers = tree_reduce(num_elements, num_nodes)
    return [_Part(program) for program in RankProgram.of_all(transfers, len(num_nodes), in_rounds=transport == "store")]


class Collective:
    """One call of all its members, from when each joins."""

    def __init__(
        self,
        name: Hashable,
        group: Group,
        members: Sequence[int],
        parts: Sequence[_Part],
        element_bytes: int,
        passing: Passing,
    ) -> None:
        self._name = name
        self._parts = parts
        self._calls: dict[int, _Call] = {}
        self._members = members
        transfers = parts[0].program.transfers
        places = parts[0].program.send_index
        self.messages = [
            Message(
                group=group,
                name=(name, number),
                source=members[transfer.source],
                readers=tuple(members[reader] for reader in transfer.readers),
                num_bytes=transfer.num_elements * element_bytes,
                kind="collective",
                call=name,
                place=places[number],
            )
            for number, transfer in enumerate(transfers)
        ]
        self._passing = passing

    def join(self, member: int, done: Done) -> None:
        _Call(self.messages, self._parts[self._members.index(member)], member, self._passing, done).next_round()


class _Call:
    """One rank's."""

    def __init__(self, messages: list[Message], part: _Part, member: int, passing: Passing, done: Done) -> None:
        self._messages = messages
        self._part = part
        self._member = member
        self._passing = passing
        self._done = done
        self._round = -1
        self._left = 0
        self._may_send: set[int] = set()
        """Sends of this round that wait for something."""
        self._span_needs = list(part.span_needs)
        self._send_needs = dict(part.send_needs)

    def next_round(self) -> None:
        rounds = self._part.program.rounds
        while self._left == 0:
            self._round += 1
            if self._round >= len(rounds):
                if self._round == len(rounds):
                    self._done()
                return
            now = rounds[self._round]
            self._left = len(now.sends) + len(now.takes)
            ready = [number for number in now.sends if self._send_needs[number] == 0]
            self._may_send = set(now.sends).difference(ready)
            expected_by = self._part.program.expected_by
            for number in ready:
                self._send(number)
            for number in now.takes:
                arrived = partial(self._arrived, number)
                self._passing.receive(self._messages[number], self._member, arrived, expected_by.get(number))

    def _send(self, number: int) -> None:
        self._passing.send(self._messages[number], partial(self._sent, number))

    def _sent(self, number: int, began_s: float) -> None:
        self._left -= 1
        for span in self._part.spans_after_send.get(number, ()):
            self._nearer(span)
        self.next_round()

    def _arrived(self, number: int, began_s: float) -> None:
        self._left -= 1
        span = self._part.span_of.get(number)
        if span is None:
            self._took((number,))
        else:
            self._nearer(span)
        self.next_round()

    def _nearer(self, span: int) -> None:
        self._span_needs[span] -= 1
        if self._span_needs[span] == 0:
            self._took(self._part.program.sums[span].parts)

    def _took(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for send in self._part.allows.get(number, ()):
                self._send_needs[send] -= 1
                if self._send_needs[send] == 0 and send in self._may_send:
                    self._may_send.remove(send)
                    self._send(send)
