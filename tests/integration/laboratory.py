"""Namespaces for tests, where this process may make them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.lab.namespaces import Star, missing_privilege, star


@contextmanager
def star_or_skip(num_members: int) -> Iterator[Star]:
    """A star of namespaces; the test is skipped, with the reason, where a privilege is missing."""
    lacking = missing_privilege()
    if lacking is not None:
        pytest.skip(f"network namespaces need {lacking}; run as root")
    with star(num_members) as made:
        yield made
