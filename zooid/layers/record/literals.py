"""Arguments of operations as plain JSON.

None, booleans, integers, finite floats, strings and lists stand for themselves. Everything else is an object with one
field, whose name is its kind: `{"node": 3}`, `{"tuple": […]}`, `{"dtype": "float32"}`, `{"float": "inf"}`.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from zooid.core.errors import RecordError
from zooid.layers.record.operations import NotRecorded

_MAX_DEPTH = 16
_INT_LIMIT = 2**63
_DEVICE = re.compile(r"[a-z]{1,16}(:[0-9]{1,4})?")


def _named(kind: type) -> dict[str, Any]:
    """Return the objects of this type in the module torch by their canonical names."""
    named = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, kind)}
    return {name: value for name, value in named.items() if getattr(torch, name, None) is value}


DTYPES: dict[str, torch.dtype] = _named(torch.dtype)
_LAYOUTS: dict[str, torch.layout] = _named(torch.layout)
_FORMATS: dict[str, torch.memory_format] = _named(torch.memory_format)


def dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if DTYPES.get(name) is not dtype:
        raise NotRecorded(f"it has a tensor of the type {dtype}")
    return name


def named_dtype(name: Any) -> torch.dtype:
    dtype: torch.dtype = _one_of(DTYPES, name, "type")
    return dtype


def encode_literal(value: Any, numbers: dict[fx.Node, int]) -> Any:
    """Return an argument as JSON; nodes become these numbers."""
    match value:
        case None | bool() | str():
            return value
        case int() if -_INT_LIMIT <= value < _INT_LIMIT:
            return int(value)
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case complex():
            return {"complex": [repr(value.real), repr(value.imag)]}
        case fx.Node() if value in numbers:
            return {"node": numbers[value]}
        case list():
            return [encode_literal(item, numbers) for item in value]
        case tuple() if type(value) is tuple:
            return {"tuple": [encode_literal(item, numbers) for item in value]}
        case dict() if all(isinstance(key, str) for key in value):
            return {"dict": {key: encode_literal(item, numbers) for key, item in value.items()}}
        case slice():
            return {"slice": [encode_literal(item, numbers) for item in (value.start, value.stop, value.step)]}
        case torch.dtype():
            return {"dtype": dtype_name(value)}
        case torch.device():
            return {"device": str(value)}
        case torch.layout():
            return {"layout": str(value).removeprefix("torch.")}
        case torch.memory_format():
            return {"memory_format": str(value).removeprefix("torch.")}
    raise NotRecorded(f"an operation is given a {type(value).__name__}")


def decode_literal(data: Any, nodes: Sequence[fx.Node], depth: int = 0) -> Any:
    """Return an argument from JSON; numbers of nodes become these nodes."""
    if depth > _MAX_DEPTH:
        raise RecordError(f"an argument in the trace is nested more than {_MAX_DEPTH} deep; was it altered?")

    def decode(item: Any) -> Any:
        return decode_literal(item, nodes, depth + 1)

    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if isinstance(data, (list, tuple)):
        return [decode(item) for item in data]
    if isinstance(data, dict) and len(data) == 1:
        match next(iter(data.items())):
            case "tuple", list(content):
                return tuple(decode(item) for item in content)
            case "dict", dict(content):
                return {key: decode(item) for key, item in content.items()}
            case "slice", [start, stop, step]:
                return slice(decode(start), decode(stop), decode(step))
            case "node", int(number) if type(number) is int and 0 <= number < len(nodes):
                return nodes[number]
            case "float", "inf" | "-inf" | "nan" as text:
                return float(text)
            case kind, content if kind in _SIMPLE:
                return _SIMPLE[kind](content)
    raise _invalid(data)


def _one_of(known: dict[str, Any], name: Any, what: str) -> Any:
    if not isinstance(name, str) or name not in known:
        raise RecordError(f"the trace names the {what} {name!r}, which torch does not have; was it altered?")
    return known[name]


def _invalid(data: Any) -> RecordError:
    return RecordError(f"an argument in the trace is {str(data)[:80]!r}, which has no meaning; was it altered?")


def _complex(parts: Any) -> complex:
    try:
        real, imaginary = parts
        return complex(float(real), float(imaginary))
    except (TypeError, ValueError) as error:
        raise _invalid(parts) from error


def _device(name: Any) -> torch.device:
    try:
        if isinstance(name, str) and _DEVICE.fullmatch(name):
            return torch.device(name)
    except RuntimeError as error:
        raise _invalid(name) from error
    raise _invalid(name)


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "complex": _complex,
    "dtype": named_dtype,
    "device": _device,
    "layout": lambda name: _one_of(_LAYOUTS, name, "layout"),
    "memory_format": lambda name: _one_of(_FORMATS, name, "memory format"),
}
