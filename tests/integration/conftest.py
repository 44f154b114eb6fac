"""What several files of tests share."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.pool import PoolPlatform


@pytest.fixture(scope="session", autouse=True)
def rough_profiles() -> Iterator[None]:
    """Profiles need not be good where nobody compares what they predict with what is measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOOID_PROFILE_EFFORT", "0.1")
        yield


@pytest.fixture(scope="session")
def pool() -> Iterator[PoolPlatform]:
    """For runs in which it does not matter whether a member's process has been another member before."""
    with closing(PoolPlatform()) as platform:
        yield platform
