"""Hands the state of layers over to a process that joins, while training goes on.

Parameters and the optimizer's state change only when a step is applied, so they are sent as they are. Buffers change
during a step, and are copied first. The receiver votes only when it has everything, so a sender that sees all votes may
apply its step.

Few messages are in flight at a time. So neither side needs memory for another copy of the state, and no training waits
for the copies.
"""

import threading
import time
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress

import torch
from torch import distributed as dist

from zooid.core.errors import CommError
from zooid.core.records import decode_record, encode_record
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.state_header import StateHeader, TensorHeader
from zooid.layers import Stage
from zooid.worker.checkpoints.optimizer_state import optimizer_tensors, parameter_of
from zooid.worker.checkpoints.safetensors_file import Tensors
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.step.step_protocols import TrainedState

_MESSAGE_BYTES = 2**22
"""Smaller tensors travel together in messages of about this size."""
_LARGE_BYTES = 2**18
_HEAD_START_S = 0.01
"""Head start of the step over the state, since all members wait for the step's first messages."""
_NUM_IN_FLIGHT = 4
"""Messages that are sent or received at a time."""
_SOURCE, _RECEIVER = 0, 1
"""Ranks in the group of a source and a receiver."""
_TAG_OF_HELD = 2**20
"""Tag of the first message with gradients. Messages with state have lower ones."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def send_state(
    stage: Stage,
    training: TrainedState,
    names: Container[str],
    progress: tuple[int, LossScale, Ledger],
    group: dist.ProcessGroup,
) -> None:
    """Begin to send parameters, buffers and optimizer state of these names, after so many steps."""
    step, scale, ledger = progress
    model = {name: tensor for name, tensor in _model_tensors(stage).items() if name in names}
    optimizer: Tensors = {}
    if training.optimizer is not None:
        entries = optimizer_tensors(training.optimizer, training.named_parameters)
        optimizer = {entry: tensor for entry, tensor in entries.items() if parameter_of(entry) in names}
    header = StateHeader(
        step=step,
        loss_scale=scale.factor,
        num_good_steps=scale.num_good_steps,
        ledger=ledger,
        model=_headers(model),
        optimizer=_headers(optimizer),
    )
    data = torch.frombuffer(bytearray(encode_record(header)), dtype=torch.uint8)
    buffers = {name for name, _ in stage.module.named_buffers()}
    tensors = [tensor.clone() if name in buffers else tensor for name, tensor in model.items()]
    for tag, message in enumerate((torch.tensor([len(data)]), data)):
        group.send([message], _RECEIVER, tag)
    _send([*tensors, *optimizer.values()], group, 2, after_s=_HEAD_START_S)


def receive_state(stage: Stage, group: dist.ProcessGroup) -> tuple[StateHeader, Tensors]:
    """Receive the state of some layers into the stage; return its header and the optimizer's tensors."""
    size = torch.zeros(1, dtype=torch.int64)
    group.recv([size], _SOURCE, 0).wait()
    data = torch.empty(int(size), dtype=torch.uint8)
    group.recv([data], _SOURCE, 1).wait()
    header = decode_record(data.numpy().tobytes(), StateHeader, "the header of a member's state")
    own_tensors = _model_tensors(stage)
    for each in header.model:
        if each.name not in own_tensors or tuple(own_tensors[each.name].shape) != each.shape:
            raise CommError(f"a member sent {each.name}, which the layers of this one do not have")
    optimizer = {each.name: _empty(each) for each in header.optimizer}
    _receive([*(own_tensors[each.name] for each in header.model), *optimizer.values()], group, 2)
    return header, optimizer


def send_held(training: TrainedState, names: Container[str], group: dist.ProcessGroup) -> None:
    """Begin to send the reduced gradients and changes of statistics of these names, which this member holds."""
    _send(training.held_parts_of(names), group, _TAG_OF_HELD)


def receive_held(training: TrainedState, names: Container[str], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Receive the reduced gradients and changes of statistics of these names, to be held."""
    parts = training.held_parts_of(names)
    _receive(parts, group, _TAG_OF_HELD)
    return parts


def _send(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, tag: int, after_s: float = 0.0) -> None:
    """Begin to send the tensors, which stay as they are until all has arrived. Small ones travel together.

    They arrive before the vote of the step can end. If they do not, the vote fails, and says why.
    """
    arguments = (tensors, group, tag, after_s)
    threading.Thread(target=_stream, args=arguments, name="zooid-handover", daemon=True).start()


def _stream(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, tag: int, after_s: float) -> None:
    time.sleep(after_s)
    in_flight: deque[dist.Work] = deque()
    with suppress(CommError):
        for number, batch in enumerate(_batches(tensors)):
            if len(in_flight) == _NUM_IN_FLIGHT:
                in_flight.popleft().wait()
            message = _flat(batch[0]) if len(batch) == 1 else torch.cat([_flat(tensor) for tensor in batch])
            in_flight.append(group.send([message.cpu()], _RECEIVER, tag + number))


def _receive(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, tag: int) -> None:
    """Receive into the tensors what `_send` sends from tensors of the same sizes."""
    in_flight: deque[tuple[dist.Work, list[torch.Tensor], torch.Tensor]] = deque()
    for number, batch in enumerate(_batches(tensors)):
        if len(in_flight) == _NUM_IN_FLIGHT:
            _take(*in_flight.popleft())
        is_direct = len(batch) == 1 and batch[0].is_cpu and batch[0].is_contiguous()
        message = _flat(batch[0]) if is_direct else torch.empty(sum(map(_num_bytes, batch)), dtype=torch.uint8)
        in_flight.append((group.recv([message], _SOURCE, tag + number), [] if is_direct else batch, message))
    while in_flight:
        _take(*in_flight.popleft())


def _take(work: dist.Work, batch: list[torch.Tensor], message: torch.Tensor) -> None:
    """Wait for a message, and copy it into its tensors, unless it came straight into the only one."""
    work.wait()
    parts = torch.split(message, [_num_bytes(tensor) for tensor in batch]) if batch else ()
    for tensor, part in zip(batch, parts, strict=True):
        with torch.no_grad():
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape) if part.numel() else tensor)


def _batches(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors that travel in one message: large ones alone and without a copy, small ones together."""
    batch: list[torch.Tensor] = []
    for tensor in tensors:
        if _num_bytes(tensor) >= _LARGE_BYTES:
            yield [tensor]
            continue
        if batch and sum(map(_num_bytes, batch)) + _num_bytes(tensor) > _MESSAGE_BYTES:
            yield batch
            batch = []
        batch.append(tensor)
    if batch:
        yield batch


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _model_tensors(stage: Stage) -> Tensors:
    """The parameters of a stage, and the buffers that training changes."""
    persistent = stage.model.persistent_names
    buffers = {name: buffer for name, buffer in stage.module.named_buffers() if name in persistent}
    return {name: parameter.detach() for name, parameter in stage.module.named_parameters()} | buffers


def _headers(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorHeader, ...]:
    return tuple(
        TensorHeader(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for name, tensor in tensors.items()
    )


def _empty(header: TensorHeader) -> torch.Tensor:
    if header.dtype not in _DTYPES:
        raise CommError(f"a member sent {header.name} as {header.dtype}, which this torch does not have")
    return torch.empty(header.shape, dtype=_DTYPES[header.dtype])
