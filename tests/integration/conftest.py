"""What several files of tests share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.pool import PoolPlatform


@pytest.fixture(scope="session")
def pool() -> Iterator[PoolPlatform]:
    """For runs in which it does not matter whether a member's process has been another member before."""
    with closing(PoolPlatform()) as platform:
        yield platform
