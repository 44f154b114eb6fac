"""How a model's results are nested, as a record, and back as torch's own description of it.

Results may be objects of a class, such as transformers' outputs. A record names the class, and a member looks for it
among what the job's own code has imported. Nothing is imported but modules of packages that are there already.
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
_MOST_NESTED = 32


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
    """UnknownClass where the nest has a class that is not there."""
    if depth > _MOST_NESTED:
        raise RecordError(f"results in the trace are nested more than {_MOST_NESTED} deep; was it altered?")
    if not record.kind:
        return pytree.treespec_leaf()
    children = [decode_nest(child, depth + 1) for child in record.children]
    if record.kind == _NAMED_TUPLE:
        return _spec(collections.namedtuple, _named_class(record.context), children)
    kind = _PLAIN.get(record.kind) or _named_class(record.kind)
    return _spec(kind, decode_literal(record.context, ()), children)


def _spec(kind: Any, context: Any, children: list[TreeSpec]) -> TreeSpec:
    """The description, tried once: a context that does not fit the children is found now."""
    spec = TreeSpec(kind, context, children)
    try:
        pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    except Exception as error:
        raise RecordError(
            f"results in the trace are a {kind.__name__} of {len(children)} parts, which torch refuses "
            f"({type(error).__name__}: {error}); was it altered?"
        ) from error
    return spec


def _class_name(kind: Any) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not isinstance(kind, type) or _lookup(*name.split(":")) is not kind:
        raise NotRecorded(f"it returns a {name}, which cannot be found by its name")
    return name


def _named_class(name: Any) -> type:
    """The class of results of this name; RecordError where its name leads to anything else."""
    module_name, _, qualified_name = str(name).partition(":")
    package = module_name.partition(".")[0]
    if package not in sys.modules:
        raise UnknownClass(f"results in the trace are a {name!r}, but the job's code has not imported {package!r}")
    found = _lookup(module_name, qualified_name)
    if not isinstance(found, type):
        raise UnknownClass(f"results in the trace are a {name!r}, but there is no such class")
    if found not in pytree.SUPPORTED_NODES and not issubclass(found, tuple):
        if not dataclasses.is_dataclass(found):
            raise RecordError(f"results in the trace are a {name!r}, which torch does not look into; was it altered?")
        pytree.register_dataclass(found, serialized_type_name=f"{found.__module__}.{found.__qualname__}")
    kind: type = found
    return kind


def _lookup(module_name: str, qualified_name: str) -> Any:
    """What has this name in a module; its package may load the module only now."""
    if module_name not in sys.modules:
        try:
            importlib.import_module(module_name)
        except ImportError:
            return None
    found: Any = sys.modules[module_name]
    for part in qualified_name.split("."):
        found = getattr(found, part, None)
    return found
