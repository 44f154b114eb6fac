"""Executes one rank's part of a transfer list."""

from collections import defaultdict
from collections.abc import Callable
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


def execute(call: Call, flat: torch.Tensor, transport: Transport, pool: ThreadPoolExecutor) -> None:
    """Run the call on a flat contiguous tensor; on return the tensor holds the result and may be changed."""
    transfers = call.transfers
    arrivals = {
        number: pool.submit(transport.receive, call.message(number), transfers[number].source)
        for number in call.incoming
    }
    sent: list[Future[None]] = []

    def send_where(ready: Callable[[tuple[int, ...]], bool]) -> None:
        for number, transfer in enumerate(transfers):
            if transfer.source == call.rank and ready(transfer.after):
                data = wire_view(flat[transfer.start : transfer.stop])
                sent.append(pool.submit(transport.send, call.message(number), data, transfer.readers))

    send_where(lambda after: not after)
    for (start, stop), numbers in call.reductions.items():
        own = flat[start:stop]
        parts = {transfers[number].source: received(arrivals[number].result(), own) for number in numbers}
        _finish(sent)  # the span may still be on its way out
        parts[call.rank] = own
        own.copy_(combine_in_order([parts[rank] for rank in sorted(parts)], call.operation))
        brought = set(numbers)
        send_where(lambda after, brought=brought: bool(brought.intersection(after)))  # type: ignore[misc]
    for number, arrival in arrivals.items():
        if transfers[number].combine == "copy":
            fill(flat[transfers[number].start : transfers[number].stop], arrival.result())
    _finish(sent)


def _finish(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()
