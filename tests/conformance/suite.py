"""The suite's classes, put together as PyTorch puts them together for Gloo, with ranks that are forked."""

import importlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.conformance.measurement import Configuration


def load_suite(configuration: Configuration, folder: Path) -> type[Any]:
    """The suite's test case for a configuration; once a process, since importing the suite fixes much of it."""
    # The suite decides when it is imported which tests the backend is asked to pass, by the backend's name. Under
    # Gloo's name it selects for zooid exactly what it selects for Gloo.
    os.environ["BACKEND"] = "gloo"
    os.environ["WORLD_SIZE"] = str(configuration.num_ranks)
    os.environ["TEMP_DIR"] = str(folder)
    os.environ["INIT_METHOD"] = f"file://{folder}/group"

    import torch
    from torch import distributed as dist
    from torch.testing._internal import common_distributed

    suite: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    if configuration.backend == "zooid":
        _adopt_zooid(suite)
    common_distributed.TIMEOUT_DEFAULT = configuration.limit_s
    common_distributed.TIMEOUT_OVERRIDE.clear()
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    query = "?transport=tcp" if configuration.transport == "tcp" else ""

    class Conformance(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc]
        """Each test runs in processes of its own, which meet in a folder of its own."""

        file_name: str
        meeting = fork.Barrier(configuration.num_ranks)

        def setUp(self) -> None:
            super().setUp()
            os.remove(self.file_name)
            self.folder = tempfile.mkdtemp()
            self.file_name = f"{self.folder}/group"
            suite.INIT_METHOD = f"file://{self.folder}/second_group{query}"
            Conformance.meeting = fork.Barrier(configuration.num_ranks)
            self._start_processes(fork.Process)

        def tearDown(self) -> None:
            processes = self.processes
            super().tearDown()
            for process in processes:
                process.kill()
                process.join()
            shutil.rmtree(self.folder, ignore_errors=True)

        @property
        def init_method(self) -> str:
            return f"file://{self.file_name}{query}"

        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            assert dist.get_backend() == configuration.backend, "the test would say nothing about this backend"
            super().run_test(test_name, parent_pipe)

        def _barrier(self, wait_for: int | None = None, timeout: float = 10) -> None:
            """As the suite's, which looks into a folder ten times a second, but without the pauses."""
            assert wait_for in (None, configuration.num_ranks)
            self.meeting.wait(timeout)

        def _test_accumulate_gradients_no_sync(self, *args: Any, **kwargs: Any) -> None:
            """As the suite's, which tells by the names that it knows whether the model belongs on a CPU."""
            with mock.patch.object(suite, "BACKEND", "gloo"):
                super()._test_accumulate_gradients_no_sync(*args, **kwargs)

        def _check_return_codes(self, fn: Callable[..., Any], elapsed_time: float) -> None:
            """As the suite's, which looks at the first rank's exit code alone."""
            if elapsed_time > configuration.limit_s:
                raise TimeoutError(f"killed after {elapsed_time:.0f} s")
            super()._check_return_codes(fn, elapsed_time)
            codes = [process.exitcode for process in self.processes]
            if fn not in self.skip_return_code_checks and len(set(codes)) > 1:
                raise RuntimeError(f"the ranks ended differently, with exit codes {codes}")

    return Conformance


def _adopt_zooid(suite: Any) -> None:
    """Give the suite zooid where it has selected tests for Gloo."""
    from torch import distributed as dist

    from zooid import comm

    suite.BACKEND = os.environ["BACKEND"] = "zooid"
    # Of backends that are not in these lists, the suite does not ask that the profiler sees their operations.
    suite.PROFILING_SUPPORTED_BACKENDS.append("zooid")
    suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("zooid")
    # torch's own function refuses every group whose backend is not named gloo, whatever the group can do.
    dist.monitored_barrier = comm.monitored_barrier
