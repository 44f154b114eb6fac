"""Executes one rank's part of a transfer list."""

from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from zooid.comm.tensors import combine_in_order, fill, received, wire_view
from zooid.comm.transport import Transport
from zooid.schedule.collectives import TransferList


@dataclass(frozen=True)
class Call:
    """One collective call, as one rank sees it."""

    name: str
    transfers: TransferList
    rank: int
    operation: Any
    """The ReduceOp for what is reduced; None where everything is copied."""

    def message(self, number: int) -> str:
        return f"{self.name}/{number:06d}"

    @property
    def sent_names(self) -> list[str]:
        return [self.message(number) for number, t in enumerate(self.transfers) if t.source == self.rank]

    @property
    def incoming(self) -> list[int]:
        return [number for number, transfer in enumerate(self.transfers) if self.rank in transfer.readers]

    @property
    def reductions(self) -> dict[tuple[int, int], list[int]]:
        """The spans this rank adds up, with the transfers that bring the parts."""
        groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number in self.incoming:
            transfer = self.transfers[number]
            if transfer.combine == "reduce":
                groups[transfer.start, transfer.stop].append(number)
        return groups


@dataclass(frozen=True)
class Pools:
    """Threads that send, and threads that wait for what arrives."""

    sending: ThreadPoolExecutor
    receiving: ThreadPoolExecutor


def execute(call: Call, flat: torch.Tensor, transport: Transport, pools: Pools) -> None:
    """Run the call on a flat contiguous tensor; on return the tensor holds the result and may be changed."""
    transfers = call.transfers
    unsent = [number for number, transfer in enumerate(transfers) if transfer.source == call.rank]
    sent: list[Future[None]] = []
    taken: set[int] = set()

    def send_ready() -> None:
        for number in [number for number in unsent if taken.issuperset(transfers[number].after)]:
            unsent.remove(number)
            data = wire_view(flat[transfers[number].start : transfers[number].stop])
            sent.append(pools.sending.submit(transport.send, call.message(number), data, transfers[number].readers))

    send_ready()
    arrivals = {
        number: pools.receiving.submit(transport.receive, call.message(number), transfers[number].source)
        for number in call.incoming
    }
    for (start, stop), numbers in call.reductions.items():
        own = flat[start:stop]
        parts = {transfers[number].source: received(arrivals[number].result(), own) for number in numbers}
        _finish(sent)  # the span may still be on its way out
        parts[call.rank] = own
        own.copy_(combine_in_order([parts[rank] for rank in sorted(parts)], call.operation))
        taken.update(numbers)
        send_ready()
    for number, arrival in arrivals.items():
        if transfers[number].combine == "copy":
            fill(flat[transfers[number].start : transfers[number].stop], arrival.result())
            taken.add(number)
            send_ready()
    _finish(sent)
    assert not unsent, "a transfer waits for something that its source never takes"


def _finish(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()
