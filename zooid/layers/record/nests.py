"""The nesting of a model's results as a record, and the conversion back to torch's TreeSpec.

Results may be objects of a class, such as transformers' outputs. A record names the class, and a member looks it up in
packages that the job's code has imported. Nothing else is imported.
"""

import collections
import dataclasses
import importlib
import sys
from typing import Any

from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from zooid.core.errors import RecordError
from zooid.core.runs.trace import NestRecord
from zooid.layers.record.literals import decode_literal, encode_literal
from zooid.layers.record.operations import NotRecorded

_PLAIN: dict[str, Any] = {"tuple": tuple, "list": list, "dict": dict, "ordered_dict": collections.OrderedDict}
_NAMED_TUPLE = "named_tuple"
_MAX_DEPTH = 32


class UnknownClass(RecordError):
    """The job's code has not imported the class of the model's results before the model is built."""


def encode_nest(spec: TreeSpec) -> NestRecord:
    if spec.is_leaf():
        return NestRecord()
    children = tuple(encode_nest(child) for child in spec.children())
    if spec.type is collections.namedtuple:
        return NestRecord(kind=_NAMED_TUPLE, context=_class_name(spec.context), children=children)
    plain = next((name for name, kind in _PLAIN.items() if kind is spec.type), None)
    return NestRecord(kind=plain or _class_name(spec.type), context=encode_literal(spec.context, {}), children=children)


def decode_nest(record: NestRecord, depth: int = 0) -> TreeSpec:
    """Return the nesting from its record; raise UnknownClass for a class that is not imported."""
    if depth > _MAX_DEPTH:
        raise RecordError(f"results in the trace are nested more than {_MAX_DEPTH} deep; was it altered?")
    if not record.kind:
        return pytree.treespec_leaf()
    children = [decode_nest(child, depth + 1) for child in record.children]
    if record.kind == _NAMED_TUPLE:
        return _spec(collections.namedtuple, _named_class(record.context), children)
    kind = _PLAIN.get(record.kind) or _named_class(record.kind)
    return _spec(kind, decode_literal(record.context, ()), children)


def _spec(kind: Any, context: Any, children: list[TreeSpec]) -> TreeSpec:
    """Return a TreeSpec after one trial, which fails if the context does not fit the children."""
    spec = TreeSpec(kind, context, children)
    try:
        pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    except Exception as error:
        raise RecordError(
            f"results in the trace are a {kind.__name__} of {len(children)} parts, which torch does not accept "
            f"({type(error).__name__}: {error}); was it altered?"
        ) from error
    return spec


def _class_name(kind: Any) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not isinstance(kind, type) or _lookup(*name.split(":")) is not kind:
        raise NotRecorded(f"it returns a {name}, which cannot be found by its name")
    return name


def _named_class(name: Any) -> type:
    """Return the class of results with this name; raise RecordError for anything else."""
    module_name, _, qualified_name = str(name).partition(":")
    package = module_name.partition(".")[0]
    if package not in sys.modules:
        raise UnknownClass(f"results in the trace are a {name!r}, but the job's code has not imported {package!r}")
    kind: Any = _lookup(module_name, qualified_name)
    if not isinstance(kind, type):
        raise UnknownClass(f"results in the trace are a {name!r}, but there is no such class")
    if kind in pytree.SUPPORTED_NODES or issubclass(kind, tuple):
        return kind
    if not dataclasses.is_dataclass(kind):
        raise RecordError(f"results in the trace are a {name!r}, which torch does not look into; was it altered?")
    pytree.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
    return kind


def _lookup(module_name: str, qualified_name: str) -> Any:
    """Return the object with this name in a module, which its package may load lazily; None if there is none."""
    if module_name not in sys.modules:
        try:
            importlib.import_module(module_name)
        except ImportError:
            return None
    value: Any = sys.modules[module_name]
    for part in qualified_name.split("."):
        value = getattr(value, part, None)
    return value
