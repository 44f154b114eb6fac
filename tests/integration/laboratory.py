"""Namespaces and machines for tests, where this process may make them."""

import fcntl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.machines.machine import Machine, machines, missing_requirement
from lab.namespaces import Star, missing_privilege, star
from lab.sandboxes.sandbox import SandboxHost, missing_for_sandboxes, sandbox_host

_LOCK = Path(tempfile.gettempdir()) / "zooid-star.lock"


@contextmanager
def star_or_skip(num_members: int) -> Iterator[Star]:
    """A star of namespaces; the test is skipped, with the reason, where a privilege is missing.

    Stars are made one after the other: two that are made at the same moment might choose the same addresses.
    """
    lacking = missing_privilege()
    if lacking is not None:
        pytest.skip(f"network namespaces need {lacking}; run as root")
    with ExitStack() as stack:
        with _LOCK.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            made = stack.enter_context(star(num_members))
        yield made


@contextmanager
def machines_or_skip(num: int, *programs: str, names: Sequence[str] | None = None) -> Iterator[tuple[Machine, ...]]:
    """Machines that share nothing but a network; the test is skipped, with the reason, where something is missing.

    `programs` are what must be installed besides. Sets of machines may be made side by side.
    """
    lacking = missing_requirement(*programs)
    if lacking is not None:
        pytest.skip(f"machines need {lacking}")
    with machines(num, names=names) as made:
        yield made


@contextmanager
def sandboxes_or_skip() -> Iterator[SandboxHost]:
    """A host of sandboxes; the test is skipped, with the reason, where something is missing."""
    lacking = missing_for_sandboxes()
    if lacking is not None:
        pytest.skip(f"sandboxes need {lacking}")
    with sandbox_host() as host:
        yield host
