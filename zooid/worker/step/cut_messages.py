"""Messages between neighbouring stages: for each grain, all values that cross a cut travel as one message."""

from collections.abc import Sequence
from typing import Any

import torch

from zooid.layers import Mode, Stage, Value
from zooid.schedule.actions import Kind
from zooid.worker.member.seat import Seat
from zooid.worker.step.pending import Pending


class Messenger:
    """Sends and receives messages. The grain is the tag, so that no message waits for an earlier one."""

    def __init__(self, seat: Seat) -> None:
        self._neighbours = seat.groups.neighbours
        self._last_sent: dict[Kind, Pending] = {}

    def send(self, kind: Kind, grain: int, message: torch.Tensor) -> Pending:
        group, rank = self._neighbours[kind]
        sent = Pending([group.send([message], rank, grain)], after=self._last_sent.get(kind))
        self._last_sent[kind] = sent
        return sent

    def receive(self, kind: Kind, grain: int, message: torch.Tensor) -> Pending:
        group, rank = self._neighbours[kind]
        return Pending([group.recv([message], rank, grain)])


class CutMessages:
    """Exchanges the values that cross the cuts before and after one stage, and their gradients."""

    def __init__(self, stage: Stage, seat: Seat, device: torch.device, mode: Mode) -> None:
        values_in = stage.model.values_into(stage.first_layer, mode) if stage.first_layer > 0 else ()
        values_out = () if stage.is_last else stage.model.values_into(stage.end_layer, mode)
        self._packings = {
            Kind.RECEIVE_FORWARD: _Packing(values_in, device),
            Kind.SEND_FORWARD: _Packing(values_out, device),
        }
        if mode == "train":
            gradients_in = select(values_in, stage.differentiable_inputs) if values_in else ()
            gradients_out = select(values_out, stage.differentiable_outputs)
            self._packings[Kind.RECEIVE_BACKWARD] = _Packing(gradients_out, device)
            self._packings[Kind.SEND_BACKWARD] = _Packing(gradients_in, device)
        self._messenger = Messenger(seat)
        self._num_samples: Sequence[int] = ()
        self._received: dict[tuple[Kind, int], torch.Tensor] = {}

    def begin_step(self, num_samples: Sequence[int]) -> None:
        """Forget the messages of the step before; `num_samples` are those of each grain of the new step."""
        self._num_samples = num_samples
        self._received.clear()

    def send(self, kind: Kind, grain: int, tensors: Sequence[torch.Tensor]) -> Pending:
        return self._messenger.send(kind, grain, self._packings[kind].pack(tensors))

    def receive(self, kind: Kind, grain: int) -> Pending:
        message = self._packings[kind].empty(self._num_samples[grain])
        self._received[kind, grain] = message
        return self._messenger.receive(kind, grain, message)

    def take(self, kind: Kind, grain: int) -> list[torch.Tensor]:
        """The tensors of a message that has arrived."""
        return self._packings[kind].unpack(self._received.pop((kind, grain)), self._num_samples[grain])


class _Packing:
    """Packs the tensors of one cut into one flat buffer of bytes, and back."""

    def __init__(self, values: Sequence[Value], device: torch.device) -> None:
        self._values = tuple(values)
        self._device = device

    def empty(self, num_samples: int) -> torch.Tensor:
        return torch.empty(sum(self._sizes(num_samples)), dtype=torch.uint8, device=self._device)

    def pack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensors as one message. A single tensor is not copied, and without tensors the message is empty.

        No tensor crosses back to a frozen stage.
        """
        for tensor, value in zip(tensors, self._values, strict=True):
            assert tensor.dtype == value.dtype, f"a value of {tensor.dtype} crosses where {value.dtype} was traced"
        parts = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        if not parts:
            return self.empty(0)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def unpack(self, message: torch.Tensor, num_samples: int) -> list[torch.Tensor]:
        parts = torch.split(message, self._sizes(num_samples)) if len(self._values) != 1 else (message,)
        return [
            _aligned(part).view(value.dtype).view(value.shape(num_samples))
            for part, value in zip(parts, self._values, strict=True)
        ]

    def _sizes(self, num_samples: int) -> list[int]:
        return [value.num_bytes(num_samples) for value in self._values]


def select(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """The values whose flag is set."""
    return [value for value, flag in zip(values, flags, strict=True) if flag]


def _aligned(part: torch.Tensor) -> torch.Tensor:
    """Copy bytes whose offset does not allow a view as a wider dtype."""
    return part.clone() if part.storage_offset() % 16 else part
