"""Executes one rank's part of a transfer list, driven by the messages that arrive and those that have left."""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from zooid.comm.calls.buffers import Buffers
from zooid.comm.calls.tensors import copy_bytes
from zooid.comm.calls.work import Completion
from zooid.comm.transport_protocol import COLLECTIVE, Done, Message, Transport, wrong_size
from zooid.core.errors import CommAborted
from zooid.schedule.rank_program import RankProgram, SpanSum


class _Landing:
    """The destination of one transfer of a call."""

    def __init__(self, call: "Call", number: int, num_bytes: int) -> None:
        self._call = call
        self._number = number
        self._num_bytes = num_bytes

    def memory(self) -> memoryview:
        return self._call.land(self._number)

    def take(self, data: memoryview, began_s: float) -> None:
        if data.nbytes != self._num_bytes:
            raise wrong_size(data.nbytes, self._num_bytes)
        if not self._call.keep(self._number, data):
            copy_bytes(self.memory(), data)


class Call:
    """One call in flight. Events come from any thread and are handled one after the other."""

    def __init__(self, name: str, number: int, program: RankProgram, buffers: Buffers, transport: Transport) -> None:
        self.name = name
        self.number = number
        self.began_s = time.monotonic()
        self.done = Completion()
        self._program = program
        self._buffers = buffers
        self._transport = transport
        self._lock = threading.Lock()
        self._events: deque[Callable[[], None]] = deque()
        self._is_handling = False
        self._round = -1
        self._left = 0
        """Number of sends and receives of this round that are not done."""
        self._unsent: set[int] = set()
        """Sends of this round that have not begun."""
        self._gone: set[int] = set()
        """Sends that have left this rank."""
        self._here: set[int] = set()
        """Transfers that have arrived."""
        self._taken: set[int] = set()
        """Transfers that have arrived and were written to their destination, or summed into it."""
        self._landing: dict[int, memoryview] = {}

    def start(self) -> None:
        self._handle(self._next_round)

    def fail(self, error: BaseException) -> None:
        """End the call with an error; messages that still arrive for it are dropped."""
        self.done.end(error)

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks that this call is waiting for."""
        begun = self._program.rounds[: self._round + 1]
        missing = {number for begun_round in begun for number in begun_round.takes} - self._here
        return self._program.missing_ranks(missing)

    def message(self, number: int) -> Message:
        return Message(COLLECTIVE, 0, self.number, number)

    def land(self, number: int) -> memoryview:
        """Return the memory for a transfer that begins to arrive."""
        self._check_alive()
        memory = self._buffers.landing(self._program.transfers[number])
        self._landing[number] = memory
        return memory

    def keep(self, number: int, data: memoryview) -> bool:
        """Keep an arrived transfer in the transport's memory, or return False where it must be copied."""
        self._check_alive()
        if not self._buffers.keeps(self._program.transfers[number]):
            return False
        self._landing[number] = data
        return True

    def _check_alive(self) -> None:
        if self.done.is_done:
            raise CommAborted(f"{self.name} has ended")

    def _handle(self, event: Callable[[], None]) -> None:
        """Run this event and those that other threads add meanwhile, unless another thread is running events now."""
        with self._lock:
            self._events.append(event)
            if self._is_handling:
                return
            self._is_handling = True
        while True:
            with self._lock:
                if not self._events:
                    self._is_handling = False
                    return
                event = self._events.popleft()
            if not self.done.is_done:
                try:
                    event()
                except Exception as error:  # noqa: BLE001  # every error must reach the waiter
                    self.fail(error)

    def _next_round(self) -> None:
        while self._left == 0:
            self._round += 1
            if self._round == len(self._program.rounds):
                self._buffers.finish()
                self.done.end()
                return
            current = self._program.rounds[self._round]
            self._left = len(current.sends) + len(current.takes)
            self._unsent = set(current.sends)
            self._send_ready()  # first: messages of others are expected by what this rank has sent
            for number in current.takes:
                self._take(number)

    def _send_ready(self) -> None:
        for number in sorted(self._unsent):
            transfer = self._program.transfers[number]
            if self._taken.issuperset(transfer.after):
                self._unsent.remove(number)
                data = self._buffers.outgoing(transfer)
                sent = self._event(partial(self._sent, number))
                self._transport.send(
                    self.message(number), data, transfer.readers, sent, self._program.send_index[number]
                )

    def _take(self, number: int) -> None:
        transfer = self._program.transfers[number]
        arrived = self._event(partial(self._arrived, number))
        num_bytes = self._buffers.num_bytes(transfer)
        landing = _Landing(self, number, num_bytes)
        expected_after = self._program.expected_by.get(number)
        self._transport.receive(
            self.message(number), transfer.source, num_bytes, landing, arrived, expected_after, bool(transfer.after)
        )

    def _event(self, action: Callable[[], None]) -> Done:
        def done(error: BaseException | None) -> None:
            if error is not None:
                self.fail(error)
            else:
                self._handle(action)

        return done

    def _sent(self, number: int) -> None:
        self._gone.add(number)
        self._left -= 1
        for span in self._program.sums:
            if number in span.sent_before:
                self._add_up(span)
        self._next_round()

    def _arrived(self, number: int) -> None:
        self._here.add(number)
        self._left -= 1
        span = self._program.sum_of.get(number)
        if span is None:
            self._buffers.arrived(self._program.transfers[number], self._landing.pop(number))
            self._took(number)
        else:
            self._add_up(span)
        self._next_round()

    def _add_up(self, span: SpanSum) -> None:
        if not (self._here.issuperset(span.parts) and self._gone.issuperset(span.sent_before)):
            return
        transfers = self._program.transfers
        self._buffers.add_up(span, [(transfers[n].source, self._landing.pop(n)) for n in span.parts])
        self._took(*span.parts)

    def _took(self, *numbers: int) -> None:
        self._taken.update(numbers)
        if self._unsent:
            self._send_ready()
