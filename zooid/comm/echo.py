"""A rank that sends messages to itself through the store, to measure the path of a group's messages."""

import secrets

import torch
from torch import distributed as dist

from zooid.comm.calls.engine import MemoryLanding
from zooid.comm.calls.work import Completion
from zooid.comm.group_options import Options
from zooid.comm.process_group import ProcessGroup
from zooid.comm.store.store_transport import StoreTransport
from zooid.comm.transport_protocol import POINT_TO_POINT, Message
from zooid.core.abort import Abort
from zooid.core.runs import keys
from zooid.store import ObjectStore, clear

_TIMEOUT_S = 60.0


class StoreProbe:
    """The only rank of a group in a store. Calls return when their message was put, or received."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._prefix = f"{keys.PROBES}/{secrets.token_hex(8)}"
        self._transport = StoreTransport(store, self._prefix, 0, timeout_s=_TIMEOUT_S)

    def send(self, number: int, data: memoryview) -> None:
        done = Completion()
        self._transport.send(Message(POINT_TO_POINT, 0, number), data, (0,), done.end)
        _wait(done)

    def receive(self, number: int, num_bytes: int) -> None:
        done = Completion()
        landing = MemoryLanding(memoryview(bytearray(num_bytes)), done)
        self._transport.receive(Message(POINT_TO_POINT, 0, number), 0, num_bytes, landing, done.end)
        _wait(done)

    def close(self) -> None:
        self._transport.close(None)
        clear(self._store, self._prefix)


class EchoGroup:
    """Both ranks of a process group in a store, which exchange messages as members do."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._prefix = f"{keys.PROBES}/{secrets.token_hex(8)}"
        self._sender, self._receiver = self._rank(0), self._rank(1)

    def _rank(self, rank: int) -> ProcessGroup:
        transport = StoreTransport(self._store, self._prefix, rank, timeout_s=_TIMEOUT_S)
        options = Options(transport="store")
        return ProcessGroup(transport, rank, 2, abort=Abort(), timeout_s=_TIMEOUT_S, options=options)

    def begin(self, message: torch.Tensor, received: torch.Tensor) -> list[dist.Work]:
        """Begin to receive a message, and to send it."""
        return [self._receiver.recv([received], 0), self._sender.send([message], 1)]

    def close(self) -> None:
        for group in (self._sender, self._receiver):
            group.shutdown()
        clear(self._store, self._prefix)


def _wait(done: Completion) -> None:
    assert done.wait(_TIMEOUT_S), "the store took longer than a minute for one message"
    if done.error is not None:
        raise done.error
