"""An optimizer's state by the names of its parameters, so that another layout can divide it differently.

Torch numbers the parameters of a state dict in the order in which the optimizer got them, which differs between layouts
and from the plain model. Here every entry is a tensor with a name such as `exp_avg:first.weight`. A number is a tensor
without dimensions whose name keeps its type, as in `step(int):first.weight`. State of any other form is rejected.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zooid.core.errors import CheckpointError
from zooid.core.text import quoted
from zooid.worker.checkpoints.safetensors_file import Tensors, is_storable

_ENTRY = re.compile(r"(?P<key>[^:()]+)(?:\((?P<type>\w+)\))?:(?P<parameter>.+)", re.DOTALL)
_TYPES: dict[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),  # before int, which it is a kind of
    "int": (int, torch.int64),
    "float": (float, torch.float64),
}
_MAX_INT = 2**63 - 1
_NOTHING = "none"
_PARAMETER_KEYS = frozenset({"params", "param_names"})
"""Entries of a parameter group that name its parameters; all others are settings."""


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, tuple[str, ...]]:
    """The settings of an optimizer: for each name, such as `lr`, the different values of its parameter groups."""
    keys = dict.fromkeys(key for group in optimizer.param_groups for key in group if key not in _PARAMETER_KEYS)
    return {
        key: tuple(dict.fromkeys(str(group[key]) for group in optimizer.param_groups if key in group)) for key in keys
    }


def optimizer_tensors(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> Tensors:
    """The state of all parameters. Tensors are not copied, and parameters that never got a gradient have no state."""
    names = {id(parameter): name for name, parameter in named}
    tensors: Tensors = {}
    for parameter, state in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None:
            what = "a parameter without a name" if isinstance(parameter, torch.Tensor) else repr(parameter)
            raise _unsupported(optimizer, f"state for {what}")
        for key, value in state.items():
            entry, tensor = _entry(optimizer, key, name, value)
            tensors[entry] = tensor
    return tensors


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Load this state into an optimizer that has not stepped. Its next update is bit-equal to one without a break.

    Parameters without state keep what the optimizer began with. The optimizer takes over the tensors, so nothing else
    may use them.
    """
    states = _states(tensors)
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    parameters = dict(named)
    if unknown := sorted(states.keys() - parameters.keys()):
        raise CheckpointError(
            f"there is optimizer state for {_some(unknown)}, which the model does not have; give the run's own model"
        )
    if untrained := sorted(name for name in states if id(parameters[name]) not in groups):
        raise CheckpointError(
            f"there is optimizer state for {_some(untrained)}, which {type(optimizer).__name__} was not given; give it "
            "the parameters that the run's own had"
        )
    for name, state in states.items():
        parameter = parameters[name]
        group = groups[id(parameter)]
        optimizer.state[parameter] = {key: _on_device(key, value, parameter, group) for key, value in state.items()}


def parameter_of(entry: str) -> str:
    """The name of the parameter that an entry belongs to."""
    return _parsed(entry)["parameter"]


def _parsed(entry: str) -> re.Match[str]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise CheckpointError(
            f"{quoted(entry)!r} is not the name of an entry of optimizer state; one is exp_avg:first.weight"
        )
    return match


def _entry(optimizer: torch.optim.Optimizer, key: Any, name: str, value: Any) -> tuple[str, torch.Tensor]:
    if not isinstance(key, str) or not key or set(key) & set(":()"):
        raise _unsupported(optimizer, f"`{key!r}` of {name}, which is no text or has one of : ( ) in it")
    if isinstance(value, torch.Tensor):
        if not is_storable(value):
            raise _unsupported(optimizer, f"`{key}` of {name} as a {value.layout} tensor of {value.dtype}")
        return f"{key}:{name}", value
    if value is None:
        return f"{key}({_NOTHING}):{name}", torch.zeros((), dtype=torch.bool)
    is_too_large = isinstance(value, int) and abs(value) > _MAX_INT
    for type_name, (kind, dtype) in _TYPES.items():
        if isinstance(value, kind) and not is_too_large:
            return f"{key}({type_name}):{name}", torch.tensor(value, dtype=dtype)
    raise _unsupported(optimizer, f"`{key}` of {name} as a {type(value).__name__}")


def _states(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """The saved values by parameter and key."""
    states: dict[str, dict[str, Any]] = {}
    for entry, tensor in tensors.items():
        match = _parsed(entry)
        states.setdefault(match["parameter"], {})[match["key"]] = _value(entry, match["type"], tensor)
    return states


def _value(entry: str, type_name: str | None, tensor: torch.Tensor) -> Any:
    if type_name is None:
        return tensor
    if type_name == _NOTHING:
        return None
    if type_name not in _TYPES:
        raise CheckpointError(
            f"the optimizer state has {quoted(entry)}, of a type that this zooid does not know: update zooid"
        )
    if tensor.numel() != 1:
        raise CheckpointError(f"the optimizer state has {tensor.numel()} numbers in {quoted(entry)} instead of one")
    return tensor.item()


def _on_device(key: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """The value on the device where torch's `load_state_dict` would put it, but in its own dtype.

    Step counts stay on the CPU, unless a kernel of the device reads them.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if key == "step":
        on_device = group.get("capturable") or group.get("fused")
        return value.to(parameter.device, torch.float32) if on_device else value
    return value.to(parameter.device)


def _unsupported(optimizer: torch.optim.Optimizer, what: str) -> CheckpointError:
    return CheckpointError(
        f"{type(optimizer).__name__} keeps {what}; only dense tensors and numbers that belong to one parameter can be "
        "put into a checkpoint that another layout reads: use an optimizer such as SGD, AdamW or Adafactor"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
