"""One process group: executes transfer lists, and point-to-point messages, over a transport."""

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import distributed as dist

from zooid.comm.execution import Call, Pools, execute
from zooid.comm.tensors import fill, wire_view
from zooid.comm.transport import Transport
from zooid.comm.work import TransferWork
from zooid.core.abort import Abort
from zooid.core.errors import CommError
from zooid.schedule import collectives
from zooid.schedule.collectives import TransferList

_NUM_RECEIVING = 64
"""Waiting for a message holds a thread; threads start only when needed."""
_NUM_SENDING = 16
"""Apart from those that wait, so that a send never stands behind receives that need it."""


class ProcessGroup(dist.ProcessGroup):
    """A torch.distributed process group over any transport. Collectives run one after the other, in call order."""

    def __init__(
        self, transport: Transport, rank: int, size: int, *, abort: Abort, all_reduce: str = "three_phase"
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub lacks this constructor
        self.rendezvous: object = None
        """Whatever must live as long as the group does."""
        self._transport = transport
        self._rank = rank
        self._size = size
        self._abort = abort
        self._all_reduce = all_reduce
        self._order = ThreadPoolExecutor(1, thread_name_prefix="zooid-collective")
        self._receiving = ThreadPoolExecutor(_NUM_RECEIVING, thread_name_prefix="zooid-receive")
        self._sending = ThreadPoolExecutor(_NUM_SENDING, thread_name_prefix="zooid-send")
        self._num_collectives = 0
        self._num_messages: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        self._undiscarded: list[str] = []
        """Messages of earlier calls that some reader may not have taken yet."""

    def getBackendName(self) -> str:  # noqa: N802
        return "zooid"

    def allreduce(  # type: ignore[override]  # torch calls the form with opts
        self, tensors: list[torch.Tensor], opts: Any = None
    ) -> TransferWork:
        operation = opts.reduceOp if opts is not None else dist.ReduceOp(dist.ReduceOp.SUM)
        tensor = _single(tensors, "all_reduce")
        transfers = collectives.choose_all_reduce(
            tensor.numel(), tensor.element_size(), self._size, preferred=self._all_reduce
        )
        return self._collective("all_reduce", transfers, tensors, operation)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> TransferWork:  # type: ignore[override]
        tensor = _single(tensors, "broadcast")
        transfers = collectives.broadcast(tensor.numel(), self._size, opts.rootRank)
        return self._collective("broadcast", transfers, tensors, hears_everyone=False)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> TransferWork:
        own = _single(inputs, "all_gather")
        parts = outputs[0]
        joined = torch.empty(own.numel() * self._size, dtype=own.dtype)
        joined[own.numel() * self._rank : own.numel() * (self._rank + 1)] = own.detach().reshape(-1)

        def spread() -> None:
            for part, piece in zip(parts, joined.chunk(self._size), strict=True):
                part.detach().copy_(piece.view_as(part))

        transfers = collectives.all_gather(joined.numel(), self._size)
        return self._collective("all_gather", transfers, [joined], then=spread, result=parts)

    def barrier(self, opts: Any = None) -> TransferWork:
        total = dist.ReduceOp(dist.ReduceOp.SUM)
        return self._collective("barrier", collectives.exchange(1, self._size), [torch.zeros(1)], total)

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> TransferWork:
        tensor = _single(tensors, "send").detach().contiguous()
        name = self._message_name(self._rank, rank, tag)
        done = self._sending.submit(self._transport.send, name, wire_view(tensor), (rank,))
        return TransferWork(done, tensors, f"send to rank {rank}")

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> TransferWork:
        tensor = _single(tensors, "recv")
        name = self._message_name(rank, self._rank, tag)

        def receive() -> None:
            data = self._transport.receive(name, rank)
            _write(tensor, lambda flat: fill(flat, data))
            self._sending.submit(self._transport.discard, [name])

        return TransferWork(self._receiving.submit(receive), tensors, f"receive from rank {rank}")

    def abort(self) -> None:
        """Free every wait of this group, at once and for good."""
        self._abort.set("the process group was aborted")

    def shutdown(self) -> None:
        for pool in (self._order, self._receiving, self._sending):
            pool.shutdown(wait=True, cancel_futures=self._abort.is_set)

    def _message_name(self, source: int, target: int, tag: int) -> str:
        number = self._num_messages[source, target, tag]
        self._num_messages[source, target, tag] += 1
        return f"messages/{source}-{target}/{tag}/{number:08d}"

    def _collective(
        self,
        what: str,
        transfers: TransferList,
        tensors: list[torch.Tensor],
        operation: Any = None,
        then: Callable[[], None] | None = None,
        result: list[torch.Tensor] | None = None,
        hears_everyone: bool = True,
    ) -> TransferWork:
        name = f"{self._num_collectives:08d}-{what}"
        self._num_collectives += 1
        tensor = tensors[0]

        def run() -> None:
            call = Call(name, transfers, self._rank, operation)
            pools = Pools(self._sending, self._receiving)
            _write(tensor, lambda flat: execute(call, flat, self._transport, pools))
            if hears_everyone:  # whoever has everyone's part of a call knows that all have finished the calls before
                self._sending.submit(self._transport.discard, self._undiscarded)
                self._undiscarded = []
            self._undiscarded = [*self._undiscarded, *call.sent_names]
            if then is not None:
                then()

        return TransferWork(self._order.submit(run), result or tensors, what)


def _single(tensors: list[torch.Tensor], call: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise CommError(f"{call} takes one tensor per call, not {len(tensors)}")
    if tensors[0].device.type != "cpu":
        raise CommError(f"{call} on {tensors[0].device}: the backend zooid moves CPU tensors")
    return tensors[0]


def _write(tensor: torch.Tensor, action: Callable[[torch.Tensor], None]) -> None:
    """Let `action` change the tensor's values as a flat contiguous tensor, copying only where it is not one."""
    values = tensor.detach()
    if values.is_contiguous():
        action(values.reshape(-1))
    else:
        flat = values.reshape(-1).contiguous()
        action(flat)
        values.copy_(flat.view_as(values))
