"""Running the suite once: one process forks the ranks of every test, the caller keeps time and receives the results."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

Backend = Literal["gloo", "zooid"]
Transport = Literal["file", "tcp"]
Status = Literal["passed", "skipped", "failed"]

STARTUP_LIMIT_S = 60.0
"""For the first report of a measuring process, which imports the suite."""
GRACE_S = 30.0
"""What a test may take beyond its limit: its ranks are asked where they stand before they are killed."""
LOG_TAIL_CHARS = 4000


@dataclass(frozen=True)
class Configuration:
    """What one run of the suite is made with."""

    backend: Backend
    num_ranks: int
    transport: Transport = "file"
    """How zooid's ranks exchange bytes; Gloo's always use sockets."""
    limit_s: int = 90
    """A test that takes longer has failed. The suite gives most collectives 60 s; their own error says more."""

    @property
    def title(self) -> str:
        over = f" over {self.transport}" if self.backend == "zooid" else ""
        return f"{self.backend}{over}, {self.num_ranks} ranks"


@dataclass(frozen=True)
class Outcome:
    """What became of one test."""

    test: str
    status: Status
    reason: str
    """Why it was skipped, or the ranks' tracebacks."""
    duration_s: float


class Measurement:
    """One run of the suite: of the tests that are named, or of all when none are.

    The suite reads the backend and the number of ranks when it is imported, so each run has a process of its own. It
    is forked from a caller that has imported torch, and forks the ranks in turn: starting them costs milliseconds.
    """

    def __init__(self, configuration: Configuration, tests: Sequence[str] = ()) -> None:
        fork = multiprocessing.get_context("fork")
        self._configuration = configuration
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self._log = Path(self._folder.name, "log")
        self._results, sender = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_measure, args=(configuration, tests, Path(self._folder.name), sender))
        self._process.start()
        sender.close()
        num_tests = self._receive(STARTUP_LIMIT_S)
        assert isinstance(num_tests, int)
        self.num_tests = num_tests

    def __iter__(self) -> Iterator[Outcome]:
        for _ in range(self.num_tests):
            outcome = self._receive(self._configuration.limit_s + GRACE_S)
            assert isinstance(outcome, Outcome)
            yield outcome

    def close(self) -> None:
        """End the measuring process and ranks that it may have left running."""
        assert self._process.pid is not None
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._folder.cleanup()

    def _receive(self, limit_s: float) -> object:
        problem = "the measuring process ended early"
        with contextlib.suppress(EOFError):
            if self._results.poll(limit_s):
                return self._results.recv()
            problem = f"no result for {limit_s:.0f} s, although every test has a limit"
        log = _tail(self._log) if self._log.exists() else ""
        self.close()
        raise RuntimeError(f"{self._configuration.title}: {problem}\n{log}")


def _measure(configuration: Configuration, tests: Sequence[str], folder: Path, results: Connection) -> None:
    from tests.conformance.suite import load_suite

    os.setpgid(0, 0)
    tempfile.tempdir = str(folder)
    case = load_suite(configuration, folder)
    known = unittest.TestLoader().getTestCaseNames(case)
    unknown = sorted(set(tests) - set(known))
    if unknown:
        raise ValueError(f"the suite of this torch has no {', '.join(unknown)}; it has {', '.join(known)}")
    selected = tests or known
    results.send(len(selected))
    log_file = folder / "log"
    log = os.open(log_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in selected:
        os.truncate(log, 0)
        results.send(_run_test(case(name), name, log_file))


def _run_test(test: unittest.TestCase, name: str, log_file: Path) -> Outcome:
    result = unittest.TestResult()
    started = time.perf_counter()
    test.run(result)
    duration_s = time.perf_counter() - started
    problems = [text for _, text in result.errors + result.failures]
    if result.unexpectedSuccesses:
        problems.append("passed, although the suite expects it to fail")
    if problems:
        return Outcome(name, "failed", "\n".join([*problems, "What the ranks printed:", _tail(log_file)]), duration_s)
    if result.skipped:
        return Outcome(name, "skipped", result.skipped[0][1], duration_s)
    return Outcome(name, "passed", "", duration_s)


def _tail(log_file: Path) -> str:
    return log_file.read_text(errors="replace")[-LOG_TAIL_CHARS:]
