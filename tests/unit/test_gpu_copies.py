"""Which tensors of a GPU a call copies back, with tensors of the processor in their place."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zooid.comm.calls import gpu_copies
from zooid.comm.calls.work import Completion


class PretendedGpuTensor(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(type="cuda")

    def record_stream(self, stream: Any) -> None:
        pass


class PretendedEvent:
    def record(self, stream: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None, wait_event=lambda event: None)
    empty: Callable[..., torch.Tensor] = torch.empty
    monkeypatch.setattr(gpu_copies, "_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", PretendedEvent)
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **more: empty(*sizes, **more))


def on_gpu(*values: float) -> torch.Tensor:
    return torch.tensor(values).as_subclass(PretendedGpuTensor)


def double(tensors: list[torch.Tensor]) -> Completion:
    """A call that writes all that it is given."""
    for tensor in tensors:
        tensor.mul_(2.0)
    done = Completion()
    done.end(None)
    return done


def test_only_what_a_call_writes_is_copied_back() -> None:
    sent, received = on_gpu(1.0, 2.0), on_gpu(3.0, 4.0)
    versions = sent._version, received._version
    gpu_copies.stage("exchange", [sent, received], double, [received], [received]).wait()
    assert sent.tolist() == [1.0, 2.0]
    assert received.tolist() == [6.0, 8.0]
    assert (sent._version, received._version) == (versions[0], versions[1] + 1)


def test_an_activation_that_was_sent_can_still_be_differentiated() -> None:
    inputs = torch.tensor([1.0, -1.0], requires_grad=True)
    output = torch.relu(inputs)
    sent = output.detach().as_subclass(PretendedGpuTensor)
    gpu_copies.stage("send", [sent], double, [sent], []).wait()
    output.sum().backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None
    assert inputs.grad.tolist() == [1.0, 0.0]
