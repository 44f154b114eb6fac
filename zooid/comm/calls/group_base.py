"""The base of a process group: its state, how its calls are started, and how it ends."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist

from zooid.comm import c10d_barrier
from zooid.comm.calls.arguments import check_devices, timeout_s
from zooid.comm.calls.buffers import Buffers, Scratch
from zooid.comm.calls.engine import Engine
from zooid.comm.calls.gpu_copies import stage
from zooid.comm.calls.profiler_events import begin_event, end_event
from zooid.comm.calls.wire_codecs import Residuals
from zooid.comm.calls.work import Completion, JoinedWork, TransferWork
from zooid.comm.group_options import Options
from zooid.comm.transport_protocol import Transport
from zooid.core.abort import Abort
from zooid.schedule.all_reduce_choice import AllReduceChoice
from zooid.schedule.rank_program import RankProgram
from zooid.schedule.transfer_lists import TransferList

Tensor = torch.Tensor
Start = Callable[[list[Tensor], int], Completion]
"""Begins a call on tensors in CPU memory, under the number that was reserved for it."""

_MAX_PROGRAMS = 1024


class GroupBase(dist.ProcessGroup):
    """A process group without collectives, which its subclass adds."""

    def __init__(
        self,
        transport: Transport,
        rank: int,
        size: int,
        *,
        abort: Abort,
        timeout_s: float,
        options: Options,
        c10d_store: Any = None,
        latency_s: float | None = None,
        on_left: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub lacks this constructor
        self.counter = transport.counter
        self.engine = Engine(transport, rank, size, timeout_s=timeout_s, abort=abort)
        self._c10d_store = c10d_store
        """The store of the group's rendezvous; torch itself keeps only its C++ half alive."""
        self._num_monitored = 0
        self._name = ""
        self._description = ""
        self._rank = rank
        self._size = size
        self._options = options
        self._on_left = on_left
        self._choice = AllReduceChoice(options.transport, options.all_reduce, size, latency_s)
        self._programs: dict[int, RankProgram] = {}
        self._residuals = Residuals()
        self._scratch = Scratch()
        self._coalesced: list[TransferWork] | None = None

    def getBackendName(self) -> str:  # noqa: N802
        return "zooid"

    _get_backend_name = getBackendName

    # torch's own setters need one of torch's own backends below the group.
    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Pass a barrier that names missing ranks; see `zooid.comm.monitored_barrier`."""
        limit_s = self.engine.timeout_s if timeout is None else getattr(timeout, "total_seconds", lambda: timeout)()
        folder = f"monitored_barrier/{self._num_monitored}"
        self._num_monitored += 1
        c10d_barrier.monitored_barrier(
            self._c10d_store, folder, self._rank, self._size, limit_s=limit_s, wait_all_ranks=wait_all_ranks
        )

    def abort(self) -> None:
        """End every call of this group at once, and let all later ones fail."""
        self.engine.abort("the process group was aborted")

    def shutdown(self) -> None:
        if self.engine.close():
            self._on_left()
        self._c10d_store = None

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> TransferWork:
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(works, [])

    def _run(self, name: str, transfers: TransferList, buffers: Buffers, opts: Any, number: int) -> Completion:
        program = self._programs.get(id(transfers))
        if program is None:
            if len(self._programs) >= _MAX_PROGRAMS:
                self._programs.clear()
            # Over TCP a sender waits until its receive is posted: with rounds, ranks would wait for each other in a
            # circle.
            program = RankProgram(transfers, self._rank, in_rounds=self._options.transport == "store")
            self._programs[id(transfers)] = program
        return self.engine.run(name, program, buffers, number, timeout_s(opts))

    def _work(
        self,
        name: str,
        tensors: Sequence[Tensor],
        start: Start,
        *,
        result: Sequence[Tensor] | None = None,
        number: int | None = None,
        num_inputs: int | None = None,
        written: Sequence[Tensor] | None = None,
    ) -> TransferWork:
        """Begin a call; GPU tensors are copied to CPU memory, and those that the call writes also back.

        By default, a call writes its result. The first `num_inputs` tensors are inputs.
        """
        is_staged = not all(tensor.is_cpu for tensor in tensors)
        if is_staged:
            check_devices(tensors, name)
        shown = tensors if result is None else result
        reserved = self.engine.reserve() if number is None else number
        event = begin_event(name, tensors[:num_inputs])
        work: TransferWork
        try:
            if is_staged:
                work = stage(
                    name, tensors, lambda cpu: start(cpu, reserved), shown, shown if written is None else written
                )
            else:
                work = TransferWork(start(list(tensors), reserved), shown, name)
        except Exception:
            if number is None:
                self.engine.finish_collective(reserved)
            raise
        end_event(event, work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
