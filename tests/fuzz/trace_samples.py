"""A small trace written by hand, with every kind of node, argument and constant that a trace may have."""

from typing import Any

import msgspec
import torch
from safetensors.torch import save

from zooid.core.runs.trace import (
    ConstantRecord,
    GraphRecord,
    LayersRecord,
    NestRecord,
    NodeRecord,
    ProgramRecord,
    StateRecord,
    TensorRecord,
    Trace,
    digest_of,
)

_BATCH = TensorRecord(dtype="float32", sizes=((0, 1), 4))

CONSTANTS = save({"constant_0": torch.linspace(0.0, 1.0, 4), "constant_1": torch.arange(3)})


def trace_bytes() -> bytes:
    layers = LayersRecord(
        train=_program(is_training=True),
        evaluation=_program(is_training=False),
        names=("first", "second"),
        persistent_names=("first.weight", "second.weight"),
        aliases={"tied.weight": "first.weight"},
        device="cpu",
        constants_digest=digest_of(CONSTANTS),
    )
    return msgspec.json.encode(Trace(fingerprint="00", layers=layers))


def _program(*, is_training: bool) -> ProgramRecord:
    return ProgramRecord(
        inputs=(NodeRecord(name="x", tensor=_BATCH, is_floating=True), NodeRecord(name="flag", literal=True)),
        state=(_parameter("first.weight"), _parameter("second.weight")),
        parameters=("first.weight", "second.weight"),
        constants=(
            ConstantRecord(name="c_factors", tensor="constant_0"),
            ConstantRecord(name="branch", graph=_branch()),
        ),
        operations=(
            NodeRecord(name="sym_size", operation="aten.sym_size.int", args=(_node(0), 0), is_number=True),
            _computed("linear", "aten.linear.default", _node(0), _node(2)),
            _computed("dropout", "aten.dropout.default", _node(7), 0.1, is_training),
            _computed("mul", "aten.mul.Tensor", _node(8), _node(4)),
            _computed("clamp", "aten.clamp.default", _node(9), {"float": "-inf"}, {"float": "inf"}),
            _computed("to", "aten.to.dtype_layout", _node(10), dtype={"dtype": "float32"}, device={"device": "cpu"}),
            _computed("view", "aten.view.default", _node(11), [_node(6), 4]),
            _computed("linear_1", "aten.linear.default", _node(12), _node(3)),
        ),
        outputs=(_node(13), 2.5),
        output_nest=NestRecord(kind="dict", context=["logits", "rate"], children=(NestRecord(), NestRecord())),
        starts=(0, 7),
        crossing=((12,),),
    )


def _parameter(name: str) -> StateRecord:
    node_name = f"p_{name.replace('.', '_')}"
    tensor = TensorRecord(dtype="float32", sizes=(4, 4))
    return StateRecord(name=name, node=NodeRecord(name=node_name, tensor=tensor, is_floating=True, requires_grad=True))


def _computed(name: str, operation: str, *args: Any, **kwargs: Any) -> NodeRecord:
    return NodeRecord(name=name, operation=operation, args=args, kwargs=kwargs, tensor=_BATCH, is_floating=True)


def _branch() -> GraphRecord:
    return GraphRecord(
        inputs=("arg0_1",),
        constants=(ConstantRecord(name="c_steps", tensor="constant_1"),),
        nodes=(NodeRecord(name="getitem", operation="operator.getitem", args=(_node(0), {"slice": [0, None, 2]})),),
        output={"tuple": [_node(2)]},
    )


def _node(number: int) -> dict[str, int]:
    return {"node": number}
