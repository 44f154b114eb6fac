"""Environment variables, which no other module reads.

Credentials are not here: the object-store client reads AWS_*, GOOGLE_* and AZURE_* itself.
"""

import getpass
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from zooid.core.errors import InputError
from zooid.core.text import has_credentials, quoted
from zooid.core.units import small_number

_S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The most specific comes first; obstore gives them the same precedence."""
_READ_AT_START = ("GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
"""Prefixes of variables that the interpreter or a library reads only once, when it is loaded."""

_REPOSITORY_VARIABLES = frozenset(
    f"GIT_{name}"
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "COMMON_DIR", "PREFIX", "NAMESPACE", "OBJECT_DIRECTORY")
)


def member_environment(num_threads: int, *, uses_gpus: bool = False) -> dict[str, str]:
    """Return the environment of a member on this machine: that of this process, credentials included.

    Sets the number of threads, and hides the GPUs from a member that computes on the CPU.
    """
    hidden = {} if uses_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **member_settings(num_threads), **hidden}


def member_settings(num_threads: int) -> dict[str, str]:
    """Return the variables that every member needs beside the environment of its machine."""
    settings = {
        "OMP_NUM_THREADS": str(num_threads),
        # else oneDNN leaves a file in /tmp for every process that has compiled a kernel
        "ONEDNN_JIT_PROFILE": os.environ.get("ONEDNN_JIT_PROFILE", "0"),
    }
    try:
        getpass.getuser()
    except (KeyError, OSError):  # functions and containers may run as a user without a name, which PyTorch asks for
        settings["USER"] = f"user{os.getuid()}"
    return settings


_TRAVELLING = ("ZOOID_STORE_PATIENCE", "ZOOID_PROFILE_EFFORT")
"""Settings that members on other machines share with the coordinator. None of them is a secret."""


def travelling_settings(region: str | None = None) -> dict[str, str | None]:
    """Return the settings for members on other machines: endpoint and region of the store, and zooid's own.

    Nothing else of this process's environment leaves this machine. `region` is that of an AWS profile; AWS_REGION
    overrides it. None means that the member must not have the variable: `s3://bucket` has to mean the same everywhere.
    """
    named: dict[str, str | None] = {name: value for name in _TRAVELLING if (value := os.environ.get(name))}
    used_region = os.environ.get("AWS_REGION") or region or os.environ.get("AWS_DEFAULT_REGION")
    if used_region:
        named["AWS_REGION"] = used_region
    endpoint = s3_endpoint()
    return {**named, **dict.fromkeys(_S3_ENDPOINT_VARIABLES), _S3_ENDPOINT_VARIABLES[0]: endpoint}


NEEDED_GPU = "ZOOID_NEEDS_GPU"
"""The variable that is set for a member which must not compute on the CPU instead."""


def needs_gpu() -> bool:
    """Whether this process was started for a GPU, so that it must not compute on the CPU instead."""
    return bool(os.environ.get(NEEDED_GPU))


def assigned_gpus() -> str | None:
    """Read CUDA_VISIBLE_DEVICES, with which a scheduler assigns GPUs to a process; None if nobody has."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def machines_file() -> str:
    """Read ZOOID_MACHINES: the path of the file that lists one's own machines and clusters."""
    return os.environ.get("ZOOID_MACHINES") or os.path.expanduser("~/.config/zooid/machines.toml")


def prices_folder() -> str:
    """Read ZOOID_PRICES: the path of the folder with imported price lists."""
    return os.environ.get("ZOOID_PRICES") or os.path.expanduser("~/.cache/zooid/prices")


SLURM_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_CLUSTERS")
"""Variables that Slurm's commands need. They pass their whole environment to the nodes, where others may read it."""


def slurm_environment() -> dict[str, str]:
    """Return the environment for Slurm's commands."""
    return {name: os.environ[name] for name in SLURM_VARIABLES if name in os.environ}


def ray_address() -> str:
    """Read RAY_ADDRESS: where the Ray cluster is; by default this machine is one of its nodes."""
    return os.environ.get("RAY_ADDRESS") or "auto"


def ray_driver_environment() -> dict[str, str]:
    """Return the environment of the process that speaks with a Ray cluster.

    After `uv run`, Ray would otherwise repeat that command on the nodes.
    """
    return {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def settings_at_start(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that take effect only at process start; a process with the same ones can be reused."""
    return tuple(sorted(f"{name}={value}" for name, value in environment.items() if name.startswith(_READ_AT_START)))


def git_environment() -> dict[str, str]:
    """Return the environment in which git finds the repository of a folder by itself, and answers in English.

    Git's hooks, among others, set variables that name another repository.
    """
    return {**{name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}, "LC_ALL": "C"}


def torch_number(name: str) -> int | None:
    """Read RANK or WORLD_SIZE, which torchrun sets for every process; None if it is not set."""
    value = os.environ.get(name)
    if value is None:
        return None
    number = small_number(value)
    if number is None:
        raise InputError(f"{name} is {quoted(value)!r}; it must be a whole number: set it as torchrun does")
    return number


def profile_effort() -> float:
    """Read ZOOID_PROFILE_EFFORT: the fraction of its usual time that a profile takes; 1 if it is not set.

    A smaller fraction gives a rougher profile sooner.
    """
    text = os.environ.get("ZOOID_PROFILE_EFFORT", "1")
    allowed = "a number above 0 and at most 1, for example 0.1"
    return _number("ZOOID_PROFILE_EFFORT", text, math.ulp(0.0), 1, allowed)


def rough_repeats(usual_repeats: int) -> int:
    """Scale a number of repeats by the profile effort, but not below 1."""
    return max(1, round(usual_repeats * profile_effort()))


DEFAULT_STORE_PATIENCE_S = 120.0


def store_patience_s() -> float:
    """Read ZOOID_STORE_PATIENCE: for how many seconds a failing store is retried before a run ends; 120 by default.

    All programs of a run have the same patience, so that none gives up while others still wait. A single request times
    out after a fraction of it.
    """
    text = os.environ.get("ZOOID_STORE_PATIENCE", "")
    if not text:
        return DEFAULT_STORE_PATIENCE_S
    allowed = "a number of seconds from 1 to 86400, for example 300"
    return _number("ZOOID_STORE_PATIENCE", text, 1, 86_400, allowed)


@dataclass(frozen=True)
class NoticeSources:
    """Where a member hears that it will be ended, besides a signal."""

    file: str | None
    """Path of a file that appears then, from ZOOID_NOTICE_FILE."""
    url: str | None
    """URL that begins to answer with status 200 then, from ZOOID_NOTICE_URL."""
    left_s: float | None
    """Seconds from a notice to the end of the member, from ZOOID_NOTICE_SECONDS; None if that is not known."""


def notice_sources() -> NoticeSources:
    """Read ZOOID_NOTICE_FILE, ZOOID_NOTICE_URL and ZOOID_NOTICE_SECONDS."""
    seconds, left_s = os.environ.get("ZOOID_NOTICE_SECONDS", ""), None
    if seconds:
        allowed = "a number of seconds above 0 and at most 86400, for example 120"
        left_s = _number("ZOOID_NOTICE_SECONDS", seconds, math.ulp(0.0), 86_400, allowed)
    return NoticeSources(os.environ.get("ZOOID_NOTICE_FILE"), os.environ.get("ZOOID_NOTICE_URL"), left_s)


def _number(name: str, text: str, minimum: float, maximum: float, allowed: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not minimum <= number <= maximum:
        raise InputError(f"{name} is {quoted(text)!r}; it must be {allowed}")
    return number


def s3_endpoint() -> str | None:
    """Return the URL of the S3-compatible service to use instead of AWS; None if no variable sets one."""
    for name in _S3_ENDPOINT_VARIABLES:
        value = os.environ.get(name)
        if value:
            if not value.startswith(("http://", "https://")):
                shown = quoted(value if "://" in value else f"://{value}").removeprefix("://")
                raise InputError(
                    f"{name} is {shown!r}; it must start with http:// or https://, for example http://localhost:9000"
                )
            if has_credentials(value):
                raise InputError(
                    f"{name} holds a user's name or a password, which messages and other machines would show; "
                    "leave them out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                )
            return value
    return None
