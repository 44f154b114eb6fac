"""The trace of a model: its operations, their order, and its cuts. Members rebuild their stages from it.

The member that prepares a run traces the model and writes this record; the others then need neither the model's code
nor a compiler. Tensors that the model's code contains lie beside it as safetensors.
"""

import hashlib
from typing import Any

from msgspec import field

from zooid.core.records import FileRecord, Record, require

SizeRecord = int | tuple[int, int]
"""Size of one dimension: a fixed size, or a fixed part and the part that every sample adds."""


class TensorRecord(Record, frozen=True, kw_only=True):
    """Type and sizes of the tensor that a node produces."""

    dtype: str
    sizes: tuple[SizeRecord, ...]


class NodeRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a graph. Its arguments refer to earlier nodes by their numbers."""

    name: str
    operation: str = ""
    """Name of the operation that is called; empty for an input of the graph."""
    args: tuple[Any, ...] = ()
    """Positional arguments, in the form that `zooid.layers.record.literals` defines."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    tensor: TensorRecord | None = None
    is_floating: bool = False
    requires_grad: bool = False
    is_number: bool = False
    is_sample_count: bool = False
    literal: Any = None
    """Value of a model input that is not a tensor."""


class GraphRecord(Record, frozen=True, kw_only=True):
    """A graph that an operation calls, such as one branch of torch.cond."""

    inputs: tuple[str, ...]
    """Names of the graph's inputs, which are its first nodes."""
    constants: tuple["ConstantRecord", ...] = ()
    """Constants of the graph, which are its next nodes."""
    nodes: tuple[NodeRecord, ...]
    """Operations of the graph, which come last."""
    output: Any
    """The value that the graph returns, in the form of an argument."""


class ConstantRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A constant in the model's code: a tensor in the file of constants, or a graph."""

    name: str
    """Name of the constant's node."""
    tensor: str = ""
    """Name of the tensor in the file of constants; empty for a graph."""
    graph: GraphRecord | None = None

    def __post_init__(self) -> None:
        require(
            bool(self.tensor) != (self.graph is not None),
            f"constant {self.name!r} must be either a tensor or a graph; give one of `tensor` and `graph`",
        )


class StateRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter or buffer."""

    name: str
    """Name in the model's state dict."""
    node: NodeRecord


class NestRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The nesting of tensors in a model's output."""

    kind: str = ""
    """`tuple`, `list`, `dict`, or the full name of a class; empty for a single value."""
    context: Any = None
    """Data that torch keeps beside the children, such as the keys of a dict, in the form of an argument."""
    children: tuple["NestRecord", ...] = ()


class ProgramRecord(Record, frozen=True, kw_only=True):
    """The forward in one mode. Nodes are numbered in the order of the fields: inputs, state, constants, operations."""

    inputs: tuple[NodeRecord, ...]
    state: tuple[StateRecord, ...]
    parameters: tuple[str, ...]
    """Names of those states that are parameters; the others are buffers."""
    constants: tuple[ConstantRecord, ...]
    operations: tuple[NodeRecord, ...]
    outputs: tuple[Any, ...]
    output_nest: NestRecord
    starts: tuple[int, ...]
    """Index of the first operation of each layer."""
    crossing: tuple[tuple[int, ...], ...]
    """Numbers of the nodes whose values each layer but the first receives from earlier layers."""


class LayersRecord(Record, frozen=True, kw_only=True):
    """A model that is cut into layers, as members need it."""

    train: ProgramRecord
    evaluation: ProgramRecord
    names: tuple[str, ...]
    """Module path in which each layer begins."""
    persistent_names: tuple[str, ...]
    aliases: dict[str, str]
    device: str
    """Kind of device for which the types of values are valid; they depend on it under autocast."""
    constants_digest: str = ""
    """Digest of the file of constants; empty if there is none."""


class Trace(FileRecord, frozen=True, kw_only=True, tag="trace"):
    """The trace of a run's model, written once, or the reason why every member has to trace the model itself."""

    fingerprint: str
    """Fingerprint of the model that was traced."""
    layers: LayersRecord | None = None
    why_traced: str = ""
    """Why members trace the model themselves, in words; empty if they rebuild it from `layers`."""

    def __post_init__(self) -> None:
        require(bool(self.why_traced) != (self.layers is not None), "give exactly one of `layers` and `why_traced`")


def digest_of(data: bytes) -> str:
    """Return the digest with which a member verifies a trace."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
