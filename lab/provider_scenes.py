"""Providers on which the suites of platforms and of rented runs are run: endpoints of the laboratory, by name."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from lab.platform_scenes import Scene

PROVIDER_SCENES: dict[str, Callable[[], AbstractContextManager[Scene]]] = {}
