"""The fallback for a model that cannot be traced as a whole: it is cut at its own sequence of blocks.

The model's own forward is followed symbolically, its sub-modules are not looked into: each becomes one operation. So
blocks may do whatever Python can, as long as the code that calls them in turn is plain. Values are those of a real run,
on two and on three samples, which tells how their sizes depend on the number of samples; the model therefore needs its
weights.
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten

from zooid.core.errors import LayerError
from zooid.layers.batches import Batch
from zooid.layers.program import Program
from zooid.layers.values import Size, Value

_ADVICE = (
    "Write its forward without control flow that depends on values and without fixing the batch size, and make tensors "
    "that it holds or creates from numbers buffers, with register_buffer"
)
_HOW_TO_MARK = (
    "to mark by hand where the model may be cut, give it as an nn.Sequential of the pieces between the cuts: each "
    "piece may contain any code, and passes one tensor on to the next"
)


class NeedsWeights(LayerError):
    """A model without weights that only its blocks can be cut between."""


@dataclass(frozen=True)
class Block:
    """A sub-module without weights. It is kept in a box, so that a stage does not take it for a module of its own."""

    outline: nn.Module


def run_block(block: Block, names: tuple[str, ...], inputs: tuple[Any, ...], kwargs: Any, *state: Any) -> Any:
    """Called by generated stages: one block with the stage's own parameters and buffers."""
    return functional_call(block.outline, dict(zip(names, state, strict=True)), inputs, dict(kwargs))


def block_programs(model: nn.Module, example: Batch, aliases: dict[str, str], why: str) -> tuple[Program, Program]:
    """The programs of training and evaluation; LayerError says what stopped both ways."""
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise NeedsWeights(f"the model cannot be traced: {why}. {_ADVICE}")
    try:
        graph = _BlockTracer().trace(model, concrete_args=_missing_arguments(model, example))
        values = [_values_of(model, graph, _resized(example, size)) for size in (2, 3)]
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise LayerError(
            f"the model cannot be traced: {why}. Nor can it be cut between its blocks: {type(error).__name__}: "
            f"{first_line}. {_ADVICE}; or, {_HOW_TO_MARK}"
        ) from error
    return (
        _program(model.train(), graph, values, example, aliases),
        _program(model.eval(), graph, values, example, aliases),
    )


class _BlockTracer(fx.Tracer):
    """Looks into nothing but sequences."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return not isinstance(module, nn.Sequential)


def _missing_arguments(model: nn.Module, example: Batch) -> dict[str, Any]:
    """Arguments that the job's data do not give keep their defaults."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    given = {parameter.name for parameter in parameters[: len(example.args)]} | set(example.kwargs)
    return {p.name: p.default for p in parameters if p.name not in given and p.default is not inspect.Parameter.empty}


def _resized(example: Batch, size: int) -> Batch:
    """The same example with another number of samples."""

    def resize(value: Any) -> Any:
        return value[torch.arange(size) % value.shape[0]] if isinstance(value, torch.Tensor) else value

    kwargs = {name: resize(value) for name, value in example.kwargs.items()}
    return Batch(tuple(resize(value) for value in example.args), kwargs, None, size)


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, node: fx.Node) -> Any:
        self.values[node] = super().run_node(node)
        return self.values[node]


def _values_of(model: nn.Module, graph: fx.Graph, example: Batch) -> dict[fx.Node, Any]:
    """What every node of the graph is for this example; the model itself is left as it was."""
    recorder = _Recorder(fx.GraphModule(copy.deepcopy(model), graph))
    placeholders = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    given = dict(zip(placeholders, example.args, strict=False)) | example.kwargs
    with torch.no_grad():
        recorder.run(*(given[name] for name in placeholders if name in given))
    return recorder.values


def _program(
    model: nn.Module, graph: fx.Graph, values: list[dict[fx.Node, Any]], example: Batch, aliases: dict[str, str]
) -> Program:
    """The graph with blocks as operations around placeholders of their state."""
    own = fx.Graph()
    state: dict[str, fx.Node] = {}
    constants: dict[fx.Node, Any] = {}
    mapped: dict[fx.Node, Any] = {}
    inputs: dict[str, fx.Node] = {}
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))

    def state_node(name: str) -> fx.Node:
        real = aliases.get(name, name)
        if real not in state:
            state[real] = own.placeholder(f"state_{len(state)}")
            state[real].meta["val"] = tensors[real]
        return state[real]

    operations: list[fx.Node] = []
    outputs: Any = None
    num_inputs = len(example.args) + len(example.kwargs)
    for node in graph.nodes:
        if _is_left_out(node, len(inputs) == num_inputs):
            continue
        small, large = (of_size[node] for of_size in values) if node.op != "output" else (None, None)
        if node.op == "placeholder":
            mapped[node] = inputs[str(node.target)] = own.placeholder(str(node.target))
        elif node.op == "get_attr":
            mapped[node] = state_node(str(node.target))
            continue
        elif node.op == "output":
            outputs = fx.node.map_arg(node.args[0], mapped.__getitem__)
            continue
        elif isinstance(small, (int, float, bool)) and small == large:
            mapped[node] = small
            continue
        elif node.op == "call_module":
            block = model.get_submodule(str(node.target))
            held = own.placeholder(f"block_{node.name}")
            held.meta["val"] = None
            constants[held] = Block(_outline(block))
            local = [*dict(block.named_parameters()), *dict(block.named_buffers())]
            arguments = fx.node.map_arg((node.args, tuple(node.kwargs.items())), mapped.__getitem__)
            parts = [state_node(f"{node.target}.{name}") for name in local]
            mapped[node] = own.call_function(run_block, (held, tuple(local), *arguments, *parts))
            mapped[node].meta["nn_module_stack"] = {"": (str(node.target), type(block))}
            operations.append(mapped[node])
        else:
            if node.op == "call_method" and str(node.target).endswith("_"):
                raise LayerError(f"the model's forward changes a value in place, with {node.target}; {_HOW_TO_MARK}")
            mapped[node] = own.node_copy(node, mapped.__getitem__)
            operations.append(mapped[node])
        _describe(mapped[node], small, large)
    order = [*list(inputs)[: len(example.args)], *example.kwargs]
    flat, spec = tree_flatten(outputs)
    own.output(tuple(value for value in flat if isinstance(value, fx.Node)))
    parameters = {aliases.get(name, name) for name, _ in model.named_parameters(remove_duplicate=False)}
    return Program(
        operations=tuple(operations),
        inputs=tuple(inputs[name] for name in order),
        state_names={node: name for name, node in state.items()},
        parameter_names=frozenset(parameters & state.keys()),
        constants=constants,
        outputs=tuple(flat),
        output_spec=spec,
    )


def _is_left_out(node: fx.Node, has_all_inputs: bool) -> bool:
    """Arguments that keep their defaults, and the symbolic tracer's checks that they do."""
    if node.op == "placeholder":
        return has_all_inputs
    return node.op == "call_function" and "assert" in getattr(node.target, "__name__", "")


def _outline(block: nn.Module) -> nn.Module:
    """A copy without weights; tensors that are neither parameters nor buffers stay as they are."""
    return copy.deepcopy(block).to_empty(device="meta")


def _describe(node: fx.Node, small: Any, large: Any) -> None:
    """What the node is with two samples and with three tells what it is with any number."""
    node.meta["val"] = small
    node.meta["is_sample_count"] = isinstance(small, int) and (small, large) == (2, 3)
    if not isinstance(small, torch.Tensor) or small.dim() != large.dim():
        return
    slopes = [b - a for a, b in zip(small.shape, large.shape, strict=True)]
    sizes = tuple(Size(a - 2 * slope, slope) for a, slope in zip(small.shape, slopes, strict=True))
    if all(slope >= 0 for slope in slopes) and sum(1 for slope in slopes if slope) <= 1:
        node.meta["value"] = Value(small.dtype, sizes)
    node.meta["val"] = small.detach().to("meta")
