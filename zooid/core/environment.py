"""The one place where environment variables are read.

Credentials are not here: the object-store client reads AWS_*, GOOGLE_* and AZURE_* by itself.
"""

import os

from zooid.core.errors import InputError
from zooid.core.text import quoted
from zooid.core.units import small_number

_S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The more specific first, which is also the order in which obstore obeys them."""


def member_environment(num_threads: int, *, uses_gpus: bool = False) -> dict[str, str]:
    """For a process on this machine: what this one has, credentials included, and how many threads it may use.

    Accelerators are hidden from members that are to compute on the processor, so that nothing reaches for one.
    """
    hidden = {} if uses_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "OMP_NUM_THREADS": str(num_threads), **hidden}


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
