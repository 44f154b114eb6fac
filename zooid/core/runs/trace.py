"""A model's trace as a record: its operations, their order, and where it is cut. Members rebuild stages from it.

Whoever prepares a run traces the model and writes this record; members then need neither the model's code nor a
compiler. Tensors that the model's code contains lie beside it as safetensors.
"""

import hashlib
from typing import Any, ClassVar

from msgspec import field

from zooid.core.records import FileRecord, Record, require

SizeRecord = int | tuple[int, int]
"""One dimension: a fixed size, or a fixed part and what every sample adds."""


class TensorRecord(Record, frozen=True, kw_only=True):
    """Type and sizes of a tensor that a node stands for."""

    dtype: str
    sizes: tuple[SizeRecord, ...]


class NodeRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a graph. Its arguments refer to earlier nodes by their numbers."""

    name: str
    operation: str = ""
    """Name of the operation that is called; empty for what the graph is given."""
    args: tuple[Any, ...] = ()
    """Positional arguments, in the form that `zooid.layers.record.literals` defines."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    tensor: TensorRecord | None = None
    is_floating: bool = False
    requires_grad: bool = False
    is_number: bool = False
    is_sample_count: bool = False
    literal: Any = None
    """The value of a model's input that is not a tensor."""


class GraphRecord(Record, frozen=True, kw_only=True):
    """A graph that an operation calls, such as one branch of torch.cond."""

    inputs: tuple[str, ...]
    """Names of the graph's inputs, which are its first nodes."""
    constants: tuple["ConstantRecord", ...] = ()
    """What the graph contains; these are its next nodes."""
    nodes: tuple[NodeRecord, ...]
    """The operations, which come last."""
    output: Any
    """What the graph returns, in the form of an argument."""


class ConstantRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Something that the model's code contains: a tensor in the file of constants, or a graph."""

    name: str
    """Name of its node."""
    tensor: str = ""
    """Name of the tensor in the file of constants; empty for a graph."""
    graph: GraphRecord | None = None

    def __post_init__(self) -> None:
        require(
            bool(self.tensor) != (self.graph is not None), f"constant {self.name!r} is neither a tensor nor a graph"
        )


class StateRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter or buffer."""

    name: str
    """Its name in the model's state dict."""
    node: NodeRecord


class NestRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How tensors are nested in what a model returns."""

    kind: str = ""
    """`tuple`, `list`, `dict`, or the full name of a class; empty for a single value."""
    context: Any = None
    """What torch keeps beside the children, such as the keys of a dict; in the form of an argument."""
    children: tuple["NestRecord", ...] = ()


class ProgramRecord(Record, frozen=True, kw_only=True):
    """The forward of one mode. Nodes are numbered in the order of the fields: inputs, state, constants, operations."""

    inputs: tuple[NodeRecord, ...]
    state: tuple[StateRecord, ...]
    parameters: tuple[str, ...]
    """Names of the state that are parameters; the others are buffers."""
    constants: tuple[ConstantRecord, ...]
    operations: tuple[NodeRecord, ...]
    outputs: tuple[Any, ...]
    output_nest: NestRecord
    starts: tuple[int, ...]
    """Index of the first operation of each layer."""
    crossing: tuple[tuple[int, ...], ...]
    """Numbers of the nodes whose values travel into each layer but the first."""


class LayersRecord(Record, frozen=True, kw_only=True):
    """Everything that members need to know of a model that is cut into layers."""

    train: ProgramRecord
    evaluation: ProgramRecord
    names: tuple[str, ...]
    """Module path in which each layer begins."""
    persistent_names: tuple[str, ...]
    aliases: dict[str, str]
    device: str
    """Kind of device for which the types of values hold; they depend on it under autocast."""
    constants_digest: str = ""
    """Digest of the file of constants; empty where there is none."""


class Trace(FileRecord, frozen=True, kw_only=True, tag="trace"):
    """The trace of a run's model, written once; or why every member has to trace the model itself."""

    VERSION: ClassVar[int] = 1

    fingerprint: str
    """Fingerprint of the model that was traced."""
    layers: LayersRecord | None = None
    why_traced: str = ""
    """Why members trace the model themselves, in words; empty where they rebuild it from `layers`."""

    def __post_init__(self) -> None:
        require(bool(self.why_traced) != (self.layers is not None), "`layers` and `why_traced` exclude one another")


def digest_of(data: bytes) -> str:
    """The digest by which a member recognises the bytes that it was launched for."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
