"""Process groups over every transport, whose ranks are threads of this process."""

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # exported, but not in its __all__

from tests.contract.stores import new_memory
from zooid.comm import Options, ProcessGroup
from zooid.comm.store.store_transport import StoreTransport
from zooid.comm.tcp import connect
from zooid.comm.transport_protocol import Transport
from zooid.core.abort import Abort
from zooid.store import ObjectStore, open_store

Result = TypeVar("Result")
Body = Callable[[ProcessGroup, int], Result]

TRANSPORTS = ("memory", "file", "tcp")
PREFIX = "group"


class Ranks:
    """All ranks of one process group, each of which a thread can play."""

    def __init__(self, groups: Sequence[ProcessGroup], aborts: Sequence[Abort], store: ObjectStore | None) -> None:
        self.groups = groups
        self.aborts = aborts
        self.store = store
        """Where the messages lie; None where they lie nowhere."""

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def play(self, body: Body[Result], ranks: Sequence[int] | None = None) -> list[Result]:
        """Run the body as every rank at the same time; its results in order, or the first error, which ends all."""
        chosen = range(len(self.groups)) if ranks is None else ranks
        with ThreadPoolExecutor(len(chosen)) as pool:
            running = [pool.submit(body, self.groups[rank], rank) for rank in chosen]
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            failed = [future for future in ended if future.exception() is not None]
            if failed:
                self.abort()
                raise failed[0].exception() or AssertionError
            return [future.result() for future in running]

    def abort(self) -> None:
        for group in self.groups:
            group.abort()

    def leave(self) -> None:
        """All ranks leave at the same time: in peace, unless something went wrong before."""
        with ThreadPoolExecutor(len(self.groups)) as pool:
            list(pool.map(ProcessGroup.shutdown, self.groups))

    @property
    def objects(self) -> list[str]:
        return [] if self.store is None else self.store.list(PREFIX)


class OpenRanks(Protocol):
    """Makes the ranks of a new group over the transport at hand."""

    kind: str

    def __call__(self, num_ranks: int, *, timeout_s: float = 20.0, options: Options | None = None) -> Ranks: ...


class Opener:
    """Opens groups over one kind of transport, each in a place of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder

    def __call__(self, num_ranks: int, *, timeout_s: float = 20.0, options: Options | None = None) -> Ranks:
        store = self._store()
        meeting: Any = HashStore()
        # The default over sockets adds up in another order than that of ranks, which is what one process does.
        by_default = Options() if store is not None else Options(transport="tcp", all_reduce="streaming")
        chosen = options or by_default
        aborts = [Abort() for _ in range(num_ranks)]

        def make(rank: int) -> ProcessGroup:
            transport: Transport
            if store is None:
                transport, _ = connect(meeting, rank, num_ranks, chosen, timeout_s=timeout_s, abort=aborts[rank])
            else:
                transport = StoreTransport(store, PREFIX, rank, timeout_s=timeout_s)
            return ProcessGroup(
                transport, rank, num_ranks, abort=aborts[rank], timeout_s=timeout_s, options=chosen,
                c10d_store=meeting,
            )  # fmt: skip

        with ThreadPoolExecutor(num_ranks) as pool:
            return Ranks(list(pool.map(make, range(num_ranks))), aborts, store)

    def _store(self) -> ObjectStore | None:
        match self.kind:
            case "memory":
                return new_memory()
            case "file":
                return open_store((self._folder / uuid.uuid4().hex).as_uri())
            case _:
                return None


def reducing(name: str, **changed: Any) -> Any:
    """Options of an all-reduce or a reduce-scatter with the operation of this name."""
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, name)
    for field, value in changed.items():
        setattr(options, field, value)
    return options


def rooted(kind: Any, root: int, **changed: Any) -> Any:
    """Options of this kind for a call that has a root."""
    options = kind()
    options.rootRank = root
    for field, value in changed.items():
        setattr(options, field, value)
    return options


def values_of(rank: int, size: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Small numbers other than zero, different on every rank."""
    generator = torch.Generator().manual_seed(rank + 1)
    shape = [size] if isinstance(size, int) else list(size)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator) + 0.5).to(dtype)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def assert_same_bits(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors[1:]:
        assert torch.equal(tensor.contiguous().view(torch.uint8), tensors[0].contiguous().view(torch.uint8))


def value_of(tensor: Tensor) -> float:
    """The one value that all elements have."""
    value = float(tensor.reshape(-1)[0])
    assert bool((tensor == value).all())
    return value


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait for what other threads bring about."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.001)
