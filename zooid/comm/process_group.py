"""The process group: runs every collective and message of torch.distributed as transfer lists over a transport.

Methods have the names and parameters with which torch calls them.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import distributed as dist

from zooid.comm.calls import sparse
from zooid.comm.calls.arguments import SUM, check_count, check_same_type, check_times, operation, single, split_sizes
from zooid.comm.calls.buffers import Buffers, FlatBuffer, PartBuffers, flat_memory, incoming_parts, nothing
from zooid.comm.calls.group_base import GroupBase
from zooid.comm.calls.profiler_events import begin_event, end_event, quietly
from zooid.comm.calls.tensors import copy_into, flat_values, reduction_of, wire_view
from zooid.comm.calls.tree_buffers import TreeBuffers
from zooid.comm.calls.wire_codecs import CodedBuffer, is_coded
from zooid.comm.calls.work import Completion, JoinedWork, TransferWork
from zooid.core.errors import CommError
from zooid.schedule import transfer_lists
from zooid.schedule.grain_tree import Deal

Tensor = torch.Tensor


class ProcessGroup(GroupBase):
    """A torch.distributed process group over any transport. Calls start at once and overlap."""

    # Reductions

    def allreduce(self, tensors: Any, opts: Any = None) -> TransferWork:  # type: ignore[override]
        tensor = single(tensors, "all_reduce")
        if tensor.is_sparse:
            return self._sparse_all_reduce(tensor, operation(opts))
        return self._work("all_reduce", [tensor], lambda cpu, n: self._all_reduce(cpu[0], opts, n, kept_with=tensor))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> TransferWork:
        def start(cpu: list[Tensor], number: int) -> Completion:
            joined = torch.cat([values.detach().reshape(-1) for values in cpu])

            def spread() -> None:
                for values, part in zip(cpu, torch.split(joined, [values.numel() for values in cpu]), strict=True):
                    copy_into(values, part)

            return self._all_reduce(joined, opts, number, kept_with=tensors[0], then=spread)

        check_same_type(tensors, "all_reduce_coalesced")
        return self._work("all_reduce", tensors, start)

    def reduce(self, tensors: Any, opts: Any) -> TransferWork:  # type: ignore[override]
        def start(cpu: list[Tensor], number: int) -> Completion:
            is_root = opts.rootRank == self._rank
            transfers = transfer_lists.reduce(cpu[0].numel(), self._size, opts.rootRank)
            flat, write_back = flat_memory(cpu[0], write=is_root)
            reduction = reduction_of(operation(opts), flat.dtype)

            def finish() -> None:
                if is_root and reduction.is_average:
                    flat.div_(self._size)
                write_back()

            return self._run(
                "reduce", transfers, FlatBuffer(flat, self._rank, reduction, finish, self._scratch), opts, number
            )

        tensor = single(tensors, "reduce")
        return self._work("reduce", [tensor], start, written=[tensor] if opts.rootRank == self._rank else [])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> TransferWork:  # type: ignore[override]
        parts = inputs[0] if isinstance(inputs[0], list | tuple) else inputs
        check_count(parts, self._size, "reduce_scatter", "inputs")
        return self._reduce_scatter(single(outputs, "reduce_scatter"), parts, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> TransferWork:
        check_times(input, output, self._size, "reduce_scatter_tensor")
        parts = input.detach().contiguous().reshape(self._size, -1).unbind(0)
        return self._reduce_scatter(output, parts, opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TransferWork:
        pairs = zip(outputs, inputs, strict=True)
        return JoinedWork([self.reduce_scatter_single(output, input, opts) for output, input in pairs], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def tree_reduce(self, sums: Tensor, nodes: Tensor, deal: Deal) -> TransferWork:
        """Sum along the tree over grains, to which every rank brings nodes. Overwrites `nodes`; see `TreeBuffers`."""
        tensors = [nodes] if nodes.data_ptr() == sums.data_ptr() else [nodes, sums]

        def start(cpu: list[Tensor], number: int) -> Completion:
            transfers = transfer_lists.tree_reduce(sums.numel(), tuple(map(len, deal.nodes)))
            reduction = reduction_of(SUM, sums.dtype)
            buffers = TreeBuffers(cpu[0], cpu[-1], deal, self._rank, reduction, self._scratch)
            return self._run("tree_reduce", transfers, buffers, None, number)

        return self._work("tree_reduce", tensors, start, result=[sums], num_inputs=1, written=tensors)

    # Copies

    def broadcast(self, tensors: Any, opts: Any) -> TransferWork:  # type: ignore[override]
        def start(cpu: list[Tensor], number: int) -> Completion:
            values, write_back = flat_memory(cpu[0], write=opts.rootRank != self._rank)
            transfers = transfer_lists.broadcast(1, self._size, opts.rootRank)
            return self._run("broadcast", transfers, PartBuffers({0: values}, {0: values}, write_back), opts, number)

        tensor = single(tensors, "broadcast")
        return self._work("broadcast", [tensor], start, written=[] if opts.rootRank == self._rank else [tensor])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> TransferWork:
        own_part = single(inputs, "all_gather")
        parts = outputs[0] if isinstance(outputs[0], list | tuple) else outputs
        check_count(parts, self._size, "all_gather", "outputs")
        return self._work(
            "all_gather",
            [own_part, *parts],
            lambda cpu, number: self._all_gather(cpu[0], cpu[1:], opts, number),
            result=parts,
            num_inputs=1,
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> TransferWork:
        check_times(output, input, self._size, "all_gather_into_tensor")
        if not output.is_contiguous():
            raise ValueError("all_gather_into_tensor needs a contiguous output")

        def start(cpu: list[Tensor], number: int) -> Completion:
            return self._all_gather(cpu[0], list(cpu[1].detach().reshape(self._size, -1).unbind(0)), opts, number)

        return self._work("all_gather", [input, output], start, result=[output], num_inputs=1)

    _allgather_base = all_gather_single

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> TransferWork:
        """`outputs` has a list for each rank, which takes all inputs of that rank."""
        check_count(outputs, self._size, "all_gather_coalesced", "lists of outputs")
        event = begin_event("all_gather", inputs)
        with quietly():
            works = [self.allgather([[parts[i] for parts in outputs]], [own], opts) for i, own in enumerate(inputs)]
        joined = JoinedWork(works, [tensor for rank_outputs in outputs for tensor in rank_outputs])
        end_event(event, joined)
        return joined

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TransferWork:
        pairs = zip(outputs, inputs, strict=True)
        return JoinedWork([self.all_gather_single(output, input, opts) for output, input in pairs], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> TransferWork:  # type: ignore[override]
        is_root = opts.rootRank == self._rank
        parts = list(outputs[0]) if is_root else []
        if is_root:
            check_count(parts, self._size, "gather", "outputs")

        def start(cpu: list[Tensor], number: int) -> Completion:
            incoming, write_back = incoming_parts(cpu[1:], cpu[0], self._rank)
            buffers = PartBuffers({self._rank: flat_values(cpu[0])}, incoming, write_back)
            return self._run("gather", transfer_lists.gather(self._size, opts.rootRank), buffers, opts, number)

        return self._work("gather", [single(inputs, "gather"), *parts], start, result=parts, num_inputs=1)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> TransferWork:  # type: ignore[override]
        is_root = opts.rootRank == self._rank
        output = single(outputs, "scatter")
        parts = list(inputs[0]) if is_root else []
        if is_root:
            check_count(parts, self._size, "scatter", "inputs")

        def start(cpu: list[Tensor], number: int) -> Completion:
            if is_root:
                copy_into(cpu[0], cpu[1 + self._rank])
            outgoing = {rank: flat_values(part) for rank, part in enumerate(cpu[1:])}
            values, write_back = flat_memory(cpu[0], write=not is_root)
            buffers = PartBuffers(outgoing, {self._rank: values}, write_back)
            return self._run("scatter", transfer_lists.scatter(self._size, opts.rootRank), buffers, opts, number)

        return self._work("scatter", [output, *parts], start, result=[output])

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> TransferWork:
        check_count(outputs, self._size, "all_to_all", "outputs")
        check_count(inputs, self._size, "all_to_all", "inputs")
        size = self._size
        return self._work(
            "all_to_all",
            [*inputs, *outputs],
            lambda cpu, number: self._all_to_all(cpu[size:], cpu[:size], opts, number),
            result=outputs,
            num_inputs=size,
        )

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> TransferWork:
        output_sizes = split_sizes(output, output_sizes, self._size, "output")
        input_sizes = split_sizes(input, input_sizes, self._size, "input")

        def start(cpu: list[Tensor], number: int) -> Completion:
            outputs, inputs = torch.split(cpu[1].detach(), output_sizes), torch.split(cpu[0].detach(), input_sizes)
            return self._all_to_all(outputs, inputs, opts, number)

        return self._work("all_to_all", [input, output], start, result=[output], num_inputs=1)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> TransferWork:
        def start(_: list[Tensor], number: int) -> Completion:
            token = torch.zeros(1)
            buffers = FlatBuffer(token, self._rank, reduction_of(SUM, token.dtype), nothing, self._scratch)
            return self._run("barrier", transfer_lists.exchange(1, self._size), buffers, opts, number)

        return self._work("barrier", [], start)

    # Messages

    def send(self, tensors: list[Tensor], rank: int, tag: int = 0) -> TransferWork:
        def start(cpu: list[Tensor], number: int) -> Completion:
            return self.engine.send(wire_view(flat_values(cpu[0])), rank, tag, number)

        tensor = single(tensors, "send")
        number = self.engine.reserve_message(self._rank, rank, tag)
        return self._work("send", [tensor], start, number=number, written=[])

    def recv(self, tensors: list[Tensor], rank: int, tag: int = 0) -> TransferWork:
        def start(cpu: list[Tensor], number: int) -> Completion:
            values, write_back = flat_memory(cpu[0])
            return self.engine.receive(wire_view(values), rank, tag, number, write_back)

        tensor = single(tensors, "recv")
        work = self._work("recv", [tensor], start, number=self.engine.reserve_message(rank, self._rank, tag))
        work.sources.append(rank)
        return work

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> TransferWork:
        sources: list[int] = []

        def start(cpu: list[Tensor], number: int) -> Completion:
            values, write_back = flat_memory(cpu[0])
            return self.engine.receive_any(wire_view(values), tag, sources.append, write_back)

        work = self._work("recvAnySource", [single(tensors, "recv")], start, number=-1)
        work.sources = sources
        return work

    # Parts that several calls have in common

    def _all_reduce(
        self, values: Tensor, opts: Any, number: int, *, kept_with: Tensor, then: Callable[[], None] = lambda: None
    ) -> Completion:
        """Begin an all-reduce. A codec keeps its rounding errors with the tensor `kept_with`."""
        codec = self._options.codec
        is_lossy = is_coded(codec, values, operation(opts))
        transfers = self._choice.transfers(values.numel(), values.element_size(), is_lossy=is_lossy)
        flat, write_back = flat_memory(values)
        reduction = reduction_of(operation(opts), flat.dtype)

        def finish() -> None:
            if reduction.is_average:
                flat.div_(self._size)
            write_back()
            then()

        buffers: Buffers
        if is_lossy and transfers:
            residual = self._residuals.of(kept_with, flat, codec)
            buffers = CodedBuffer(flat, self._rank, reduction, finish, codec, residual)
        else:
            buffers = FlatBuffer(flat, self._rank, reduction, finish, self._scratch)
        return self._run("all_reduce", transfers, buffers, opts, number)

    def _sparse_all_reduce(self, tensor: Tensor, reduce_op: Any) -> TransferWork:
        if reduce_op != dist.ReduceOp.SUM:
            raise RuntimeError("all_reduce of sparse tensors can only sum")
        if tensor.device.type != "cpu":
            raise CommError("all_reduce of sparse tensors works in CPU memory; use tensor.cpu()")
        first = self.engine.reserve(sparse.NUM_GATHERS)
        done = sparse.all_reduce(tensor, self._size, lambda n, own, all: self._all_gather(own, all, None, first + n))
        return TransferWork(done, [tensor], "all_reduce")

    def _reduce_scatter(self, output: Tensor, parts: Sequence[Tensor], opts: Any) -> TransferWork:
        def start(cpu: list[Tensor], number: int) -> Completion:
            joined = torch.cat([part.detach().reshape(-1) for part in cpu[1:]])
            spans = tuple(pairwise(accumulate((part.numel() for part in cpu[1:]), initial=0)))
            own_sum = joined[slice(*spans[self._rank])]
            reduction = reduction_of(operation(opts), joined.dtype)

            def deliver() -> None:
                if reduction.is_average:
                    own_sum.div_(self._size)
                copy_into(cpu[0], own_sum)

            buffers = FlatBuffer(joined, self._rank, reduction, deliver, self._scratch)
            return self._run("reduce_scatter", transfer_lists.reduce_scatter(spans), buffers, opts, number)

        return self._work("reduce_scatter", [output, *parts], start, result=[output])

    def _all_gather(self, own_part: Tensor, parts: Sequence[Tensor], opts: Any, number: int) -> Completion:
        incoming, write_back = incoming_parts(parts, own_part, self._rank)
        buffers = PartBuffers({self._rank: flat_values(own_part)}, incoming, write_back)
        return self._run("all_gather", transfer_lists.all_gather(self._size, self._size), buffers, opts, number)

    def _all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any, number: int) -> Completion:
        size, rank = self._size, self._rank
        incoming, write_back = incoming_parts(outputs, inputs[rank], rank)
        numbered = {source * size + rank: values for source, values in incoming.items()}
        outgoing = {rank * size + reader: flat_values(part) for reader, part in enumerate(inputs)}
        buffers = PartBuffers(outgoing, numbered, write_back)
        return self._run("all_to_all", transfer_lists.all_to_all(size), buffers, opts, number)
