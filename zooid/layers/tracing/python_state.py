"""Python attributes of modules that a forward changes: state that no checkpoint holds and no trace sees."""

from collections.abc import Mapping, Sized
from typing import Any

from torch import nn

_NUMBERS = (bool, int, float, complex, str)
_OWN = ("training",)


def python_state(model: nn.Module) -> dict[str, Any]:
    """Numbers and texts in the attributes of all modules, and the lengths of their lists and dicts, by full name."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in _OWN or name.startswith("_"):
                continue
            if isinstance(value, _NUMBERS):
                found[f"{path}.{name}".lstrip(".")] = value
            elif isinstance(value, (list, dict, set)) and isinstance(value, Sized):
                found[f"{path}.{name}".lstrip(".")] = f"{len(value)} entries"
    return found


def changed_attribute(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Full name of the first attribute that has changed; empty where none has."""
    return next((name for name, value in after.items() if before.get(name, value) != value), "")
