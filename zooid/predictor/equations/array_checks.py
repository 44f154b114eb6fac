"""Numbers or arrays of them, checked: what every closed form takes and gives.

A closed form is evaluated for one case or for a hundred thousand at once; its arguments broadcast as numpy's do. A
bandwidth of 0 or a member too few would otherwise end as an infinity somewhere in a plan.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.core.errors import InputError

Array: TypeAlias = NDArray[np.float64]
"""What closed forms return: as many numbers as their arguments broadcast to, a single one for single ones."""


def at_least(least: float, name: str, values: ArrayLike) -> Array:
    """As floats, none below `least`."""
    given = np.asarray(values, np.float64)
    if not (given >= least).all():
        raise _refused(name, given, ~(given >= least), f"at least {least:g}")
    return given


def above_zero(name: str, values: ArrayLike) -> Array:
    given = np.asarray(values, np.float64)
    if not (given > 0).all():
        raise _refused(name, given, ~(given > 0), "above 0")
    return given


def where(condition: NDArray[np.bool_], values: Array) -> Array:
    """The values where the condition holds, and 0 elsewhere."""
    chosen: Array = np.where(condition, values, 0.0)[()]
    return chosen


def _refused(name: str, given: Array, is_wrong: NDArray[np.bool_], allowed: str) -> InputError:
    return InputError(f"`{name}` is {given[is_wrong].flat[0]:g}; it must be {allowed}")
