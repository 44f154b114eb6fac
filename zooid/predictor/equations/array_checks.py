"""Arrays of arguments, checked: every closed form takes numbers or arrays, which broadcast as in numpy.

Without these checks, a bandwidth of 0 or a missing member would become an infinity somewhere in a plan.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zooid.core.errors import InputError

Array: TypeAlias = NDArray[np.float64]
"""The result of a closed form, in the shape to which its arguments broadcast."""


def at_least(minimum: float, name: str, values: ArrayLike) -> Array:
    """Return the values as floats; raise InputError if one is below the minimum."""
    array = np.asarray(values, np.float64)
    return _checked(name, array, array >= minimum, f"at least {minimum:g}")


def above_zero(name: str, values: ArrayLike) -> Array:
    """Return the values as floats; raise InputError if one is not above 0."""
    array = np.asarray(values, np.float64)
    return _checked(name, array, array > 0, "above 0")


def where(condition: NDArray[np.bool_], values: Array) -> Array:
    """The values where the condition holds, and 0 elsewhere."""
    chosen: Array = np.where(condition, values, 0.0)[()]
    return chosen


def _checked(name: str, array: Array, is_valid: NDArray[np.bool_], allowed: str) -> Array:
    if not is_valid.all():
        raise InputError(f"`{name}` is {array[~is_valid].flat[0]:g}; it must be {allowed}")
    return array
