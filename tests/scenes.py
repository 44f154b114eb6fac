"""The laboratory's scenes in tests: where one cannot be made, the tests that need it are skipped."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import pytest

from lab.platform_scenes import MachinesLack

Made = TypeVar("Made")


@contextmanager
def or_skip(scene: AbstractContextManager[Made]) -> Iterator[Made]:
    """Enter a scene, or skip the test."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(scene)
        except MachinesLack as error:
            pytest.skip(str(error))
        yield made
