"""Structures: nests of tensors and constants, taken apart and put together again."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from zooid.core.errors import LayerError

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.memory_format, torch.layout)


class Untraceable(LayerError):
    """A call cannot be one opaque operation; `path` names the module that has to be opaque instead."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path


class _Tensor:
    """Stands for a tensor among the leaves of a structure."""

    def __repr__(self) -> str:
        return "tensor"


_TENSOR = _Tensor()


@dataclass(frozen=True)
class Structure:
    """A nest of tensors and constants, without the tensors."""

    leaves: tuple[Any, ...]
    spec: TreeSpec

    def fill(self, tensors: Sequence[Any], device: torch.device | None = None) -> Any:
        """Return the nest with these tensors in it; devices among its constants become `device`."""
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is _TENSOR else _on_device(leaf, device) for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def _on_device(leaf: Any, device: torch.device | None) -> Any:
    return device if device is not None and isinstance(leaf, torch.device) else leaf


def _is_plain(leaf: Any) -> bool:
    """Whether a trace may keep a leaf, as a tensor or as a constant."""
    return isinstance(leaf, (torch.Tensor, torch.SymInt, *_CONSTANTS, *_TORCH_CONSTANTS))


def _register_dataclasses(nest: Any) -> None:
    """Let torch look into the dataclasses in a nest, as it looks into tuples and dicts."""
    while unknown := {type(leaf) for leaf in tree_leaves(nest) if dataclasses.is_dataclass(leaf)}:
        for kind in unknown:
            torch.export.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")


def without_objects(results: Any) -> Any:
    """Replace everything by None that is neither a tensor nor a constant, such as caches for generating text."""
    _register_dataclasses(results)
    return tree_map(lambda leaf: leaf if _is_plain(leaf) else None, results)


def take_apart(path: str, nest: Any) -> tuple[Structure, list[torch.Tensor]]:
    """Return the structure and the tensors of arguments or results."""
    _register_dataclasses(nest)
    leaves, spec = tree_flatten(nest)
    for leaf in leaves:
        if not _is_plain(leaf):
            raise Untraceable(path, f"it passes a {type(leaf).__name__} between its modules")
    kept = tuple(_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Structure(kept, spec), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
