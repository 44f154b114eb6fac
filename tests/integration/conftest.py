"""What several files of tests share."""

from collections.abc import Iterator

import pytest

from tests.integration.forking import ForkingPlatform, start_forked_zygote
from zooid.platforms.local import forks


@pytest.fixture(scope="package", autouse=True)
def rough_profiles() -> Iterator[None]:
    """Profiles need not be good where nobody compares what they predict with what is measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOOID_PROFILE_EFFORT", "0.02")
        yield


@pytest.fixture(scope="package", autouse=True)
def forked_zygotes() -> Iterator[None]:
    """Zygotes of this process need no time for their imports. Tests of other packages get zygotes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "start_zygote", start_forked_zygote)
        yield
    forks.close_zygotes()


@pytest.fixture(scope="session")
def forking() -> ForkingPlatform:
    """One platform for many runs; others of this process fork their members from the same zygotes."""
    return ForkingPlatform()
