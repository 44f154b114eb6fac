"""State travels to a guest in few messages at a time, and arrives as it was sent."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist

from tests.unit.socket_groups import close, connect_all
from zooid.comm import ObjectRendezvous, ProcessGroup
from zooid.store import open_store
from zooid.worker.state import state_handover
from zooid.worker.state.state_handover import _NUM_IN_FLIGHT, _receive, _send


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[list[ProcessGroup]]:
    store = open_store(f"memory://handover-{request.node.name}")
    groups = connect_all([ObjectRendezvous(store, "pair", timeout_s=10.0) for _ in range(2)])
    yield groups
    close(groups)


def tensors() -> list[torch.Tensor]:
    """Large and small ones, one that is empty, one that is not contiguous, and several types."""
    chance = torch.Generator().manual_seed(1)
    large = [torch.rand(1000, 100, generator=chance) for _ in range(8)]
    small = [torch.rand(7, generator=chance, dtype=torch.float64), torch.tensor(3), torch.zeros(0)]
    return [*large, *small, torch.rand(40, 30, generator=chance).t(), torch.rand(5, generator=chance) > 0.5]


def test_everything_arrives_with_few_messages_in_flight(
    pair: list[ProcessGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_handover, "_MESSAGE_BYTES", 100_000)
    source, receiver = pair
    unfinished: list[dist.Work] = []
    most, num_sent = [0], [0]
    send = source.send

    def counted(*arguments: object) -> dist.Work:
        unfinished[:] = [work for work in unfinished if not work.is_completed()]
        work = send(*arguments)  # type: ignore[arg-type]
        unfinished.append(work)
        num_sent[0] += 1
        most[0] = max(most[0], len(unfinished))
        return work

    monkeypatch.setattr(source, "send", counted)
    sent = tensors()
    received = [torch.zeros_like(tensor) for tensor in sent]
    _send(sent, source, 2)
    _receive(received, receiver, 2)
    for expected, actual in zip(sent, received, strict=True):
        assert torch.equal(expected, actual)
    assert most[0] <= _NUM_IN_FLIGHT < num_sent[0]


def test_a_receiver_that_is_lost_ends_the_sending(pair: list[ProcessGroup]) -> None:
    source, receiver = pair
    _send([torch.zeros(2**21) for _ in range(20)], source, 2)
    receiver.abort()
    source.abort()
    for thread in threading.enumerate():
        if thread.name == "zooid-handover":
            thread.join(10)
            assert not thread.is_alive()
