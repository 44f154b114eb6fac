"""An optimizer's state by the names of its parameters, so that it can be divided anew over other stages.

Torch numbers the parameters of a state dict in the order in which an optimizer was given them, which another layout, or
the plain model, does not share. Here every entry is a tensor named `exp_avg:first.weight`; a number is a tensor without
dimensions whose name keeps its type, `step(int):first.weight`. What an optimizer keeps in other forms is refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zooid.core.errors import CheckpointError
from zooid.core.text import quoted
from zooid.worker.checkpoints.safetensors_file import is_storable

Tensors = dict[str, torch.Tensor]

_ENTRY = re.compile(r"(?P<key>[^:()]+)(?:\((?P<type>\w+)\))?:(?P<parameter>.+)", re.DOTALL)
_TYPES: dict[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),  # before int, which it is a kind of
    "int": (int, torch.int64),
    "float": (float, torch.float64),
}
_LARGEST_INT = 2**63 - 1
_NOTHING = "none"
_MEMBERS = frozenset({"params", "param_names"})
"""Entries of a group that say which parameters it has, rather than what it does with them."""


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, tuple[str, ...]]:
    """What an optimizer was given, as `lr`: the different values of its groups of parameters, in words."""
    keys = dict.fromkeys(key for group in optimizer.param_groups for key in group if key not in _MEMBERS)
    return {
        key: tuple(dict.fromkeys(str(group[key]) for group in optimizer.param_groups if key in group)) for key in keys
    }


def optimizer_tensors(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]]) -> Tensors:
    """The state of all parameters. Tensors are the optimizer's own, not copies; parameters that never got a gradient
    have no state."""
    names = {id(parameter): name for name, parameter in named}
    found: Tensors = {}
    for parameter, state in optimizer.state.items():
        name = names.get(id(parameter))
        if name is None:
            what = "a parameter without a name" if isinstance(parameter, torch.Tensor) else repr(parameter)
            raise _refusal(optimizer, f"state for {what}")
        for key, value in state.items():
            entry, tensor = _entry(optimizer, key, name, value)
            found[entry] = tensor
    return found


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, nn.Parameter]], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Give an optimizer that has not stepped yet this state; the next update is bitwise the same as without a break.

    Parameters without any keep what the optimizer began with, as they did before. The optimizer takes over the tensors,
    so that they must belong to nobody else.
    """
    states = _states(tensors)
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    parameters = dict(named)
    if strangers := sorted(states.keys() - parameters.keys()):
        raise CheckpointError(f"there is optimizer state for {_some(strangers)}, which the model does not have")
    if untrained := sorted(name for name in states if id(parameters[name]) not in groups):
        raise CheckpointError(
            f"there is optimizer state for {_some(untrained)}, which {type(optimizer).__name__} was not given; give it "
            "the parameters that the run's own had"
        )
    for name, state in states.items():
        parameter = parameters[name]
        group = groups[id(parameter)]
        optimizer.state[parameter] = {key: _placed(key, value, parameter, group) for key, value in state.items()}


def parameter_of(entry: str) -> str:
    """Name of the parameter that an entry belongs to."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise CheckpointError(
            f"{quoted(entry)!r} is not the name of an entry of optimizer state; one is exp_avg:first.weight"
        )
    return match["parameter"]


def _entry(optimizer: torch.optim.Optimizer, key: Any, name: str, value: Any) -> tuple[str, torch.Tensor]:
    if not isinstance(key, str) or not key or set(key) & set(":()"):
        raise _refusal(optimizer, f"`{key!r}` of {name}, which is no text or has one of : ( ) in it")
    if isinstance(value, torch.Tensor):
        if not is_storable(value):
            raise _refusal(optimizer, f"`{key}` of {name} as a {value.layout} tensor of {value.dtype}")
        return f"{key}:{name}", value
    if value is None:
        return f"{key}({_NOTHING}):{name}", torch.zeros((), dtype=torch.bool)
    is_too_large = isinstance(value, int) and abs(value) > _LARGEST_INT
    for type_name, (kind, dtype) in _TYPES.items():
        if isinstance(value, kind) and not is_too_large:
            return f"{key}({type_name}):{name}", torch.tensor(value, dtype=dtype)
    raise _refusal(optimizer, f"`{key}` of {name} as a {type(value).__name__}")


def _states(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """What was saved, by parameter and key."""
    states: dict[str, dict[str, Any]] = {}
    for entry, tensor in tensors.items():
        name = parameter_of(entry)
        match = _ENTRY.fullmatch(entry)
        assert match is not None
        states.setdefault(name, {})[match["key"]] = _value(entry, match["type"], tensor)
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
        raise CheckpointError(f"the optimizer state has {tensor.numel()} numbers in {quoted(entry)}, which is one")
    return tensor.item()


def _placed(key: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """Where torch's own `load_state_dict` would put it: counts of steps stay with the processor, unless a kernel of the
    device reads them. Unlike there, types of numbers stay as they were."""
    if not isinstance(value, torch.Tensor):
        return value
    if key == "step":
        on_device = group.get("capturable") or group.get("fused")
        return value.to(parameter.device, torch.float32) if on_device else value
    return value.to(parameter.device)


def _refusal(optimizer: torch.optim.Optimizer, what: str) -> CheckpointError:
    return CheckpointError(
        f"{type(optimizer).__name__} keeps {what}; only dense tensors and numbers that belong to one parameter can be "
        "put into a checkpoint that another layout reads: use an optimizer such as SGD, AdamW or Adafactor"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
