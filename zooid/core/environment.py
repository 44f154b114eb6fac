"""The one place where environment variables are read.

Credentials are not here: the object-store client reads AWS_*, GOOGLE_* and AZURE_* by itself.
"""

import os
from collections.abc import Mapping

from zooid.core.errors import InputError
from zooid.core.text import quoted
from zooid.core.units import small_number

_S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The more specific first, which is also the order in which obstore obeys them."""
_READ_AT_START = ("GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
"""Beginnings of variables that the interpreter, or a library while it is loaded, reads once and for all."""


def member_environment(num_threads: int, *, uses_gpus: bool = False) -> dict[str, str]:
    """For a process on this machine: what this one has, credentials included, and how many threads it may use.

    Accelerators are hidden from members that are to compute on the processor, so that nothing reaches for one.
    """
    hidden = {} if uses_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "OMP_NUM_THREADS": str(num_threads), **hidden}


def settings_at_start(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What of an environment a process cannot take over from another one later; equal where it does not matter."""
    return tuple(sorted(f"{name}={value}" for name, value in environment.items() if name.startswith(_READ_AT_START)))


def torch_number(name: str) -> int | None:
    """RANK or WORLD_SIZE, as torchrun sets them for every process; None where it is not set."""
    value = os.environ.get(name)
    if value is None:
        return None
    number = small_number(value)
    if number is None:
        raise InputError(f"{name} is {quoted(value)!r}; it must be a number")
    return number


def profile_effort() -> float:
    """ZOOID_PROFILE_EFFORT: the part of its usual time that a profile measures for; all of it where it is not set.

    Who only wants to see whether something works has a rougher profile sooner.
    """
    text = os.environ.get("ZOOID_PROFILE_EFFORT", "1")
    try:
        effort = float(text)
    except ValueError:
        effort = 0.0
    if not 0 < effort <= 1:
        raise InputError(
            f"ZOOID_PROFILE_EFFORT is {quoted(text)!r}; it must be a number above 0 and at most 1, for example 0.1"
        )
    return effort


def rough_repeats(usual: int) -> int:
    """How often a measurement is repeated that is usually repeated so often, by the same part of its time."""
    return max(1, round(usual * profile_effort()))


DEFAULT_STORE_PATIENCE_S = 120.0


def store_patience_s() -> float:
    """ZOOID_STORE_PATIENCE: for how many seconds a store that fails is asked again before a run ends; 120 if not set.

    Every program of a run has the same patience, so that none gives up while the others still wait. Requests time out
    after a share of it.
    """
    text = os.environ.get("ZOOID_STORE_PATIENCE", "")
    if not text:
        return DEFAULT_STORE_PATIENCE_S
    try:
        patience_s = float(text)
    except ValueError:
        patience_s = 0.0
    if not 1 <= patience_s <= 86_400:
        raise InputError(
            f"ZOOID_STORE_PATIENCE is {text!r}; it must be a number of seconds from 1 to 86400, for example 300"
        )
    return patience_s


def s3_endpoint() -> str | None:
    """The S3 service to use instead of AWS itself, or None where none is set."""
    for name in _S3_ENDPOINT_VARIABLES:
        value = os.environ.get(name)
        if value:
            if not value.startswith(("http://", "https://")):
                raise InputError(
                    f"{name} is {quoted(value)!r}; it must start with http:// or https://, for example "
                    "http://localhost:9000"
                )
            return value
    return None
