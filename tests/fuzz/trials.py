"""Runs a decoder on many hostile inputs, and notes everything but a project error: other errors, hangs, memory."""

import logging
import resource
import signal
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType

from tests.fuzz.inputs import Inputs
from zooid.core.errors import ZooidError

TIME_LIMIT_S = 2.0
"""Processor time of one input; a decoder takes milliseconds."""
_SPARE_BYTES = 256 * 2**10
"""Room for messages, tracebacks and what is computed once, whatever the input."""


@dataclass(frozen=True)
class Decoder:
    """Something that reads bytes which others wrote."""

    name: str
    decode: Callable[[bytes], object]
    """Decodes, and uses what came out as the program does; raises ZooidError where it is refused."""
    samples: Sequence[bytes]
    """Valid inputs: they are decoded, and changed into hostile ones."""
    wanted_bytes: int | None = None
    """For what stays bytes: what an input may take beside twice its own length, since the program has asked for it."""


@dataclass
class Report:
    """What became of the inputs of one decoder."""

    name: str
    num_inputs: int = 0
    num_taken: int = 0
    num_refused: int = 0
    wall_s: float = 0.0
    slowest_s: float = 0.0
    most_bytes: int = 0
    """The largest peak of memory that one input has taken."""
    rss_growth_bytes: int = 0
    """How far the process has grown meanwhile, for memory that Python does not count."""
    failures: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


class TookTooLong(BaseException):
    """The decoder did not end; not an Exception, so that no decoder swallows it."""


def run(decoder: Decoder, num_inputs: int, seed: int) -> Report:
    """Decode so many inputs; the report names those that did harm."""
    report = Report(decoder.name)
    began_s = time.perf_counter()
    with _time_limits(), _traced(), _unlogged():
        for sample in decoder.samples:
            _peak_bytes(decoder, sample)  # imports and caches are no part of what follows
        bytes_per_byte = max(_peak_bytes(decoder, sample) / max(1, len(sample)) for sample in decoder.samples)
        rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for data in islice(Inputs(decoder.samples, f"{seed} {decoder.name}"), num_inputs):
            _try(decoder, data, report, bytes_per_byte)
    report.wall_s = time.perf_counter() - began_s
    report.rss_growth_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before) * 1024
    return report


def _try(decoder: Decoder, data: bytes, report: Report, bytes_per_byte: float) -> None:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    began_s = time.process_time()
    problem = ""
    try:
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
        decoder.decode(data)
        report.num_taken += 1
    except ZooidError as error:
        report.num_refused += 1
        report.kinds[type(error).__name__] += 1
    except TookTooLong:
        problem = f"takes more than {TIME_LIMIT_S:g} s"
    except Exception as error:  # noqa: BLE001  # that none comes through is what is tried
        problem = f"raises {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    took_bytes = tracemalloc.get_traced_memory()[1] - before
    report.num_inputs += 1
    report.slowest_s = max(report.slowest_s, time.process_time() - began_s)
    report.most_bytes = max(report.most_bytes, took_bytes)
    # A valid input of this length would take `bytes_per_byte` as objects: a hostile one may take twice that.
    growth = max(1.0, bytes_per_byte) if decoder.wanted_bytes is None else 1.0
    allowed = 2 * growth * len(data) + (decoder.wanted_bytes or 0) + _SPARE_BYTES
    if took_bytes > allowed:
        problem = problem or f"takes {took_bytes} bytes of memory for {len(data)} of input, {allowed:.0f} are allowed"
    if problem:
        report.failures.append(f"{decoder.name}: input {report.num_inputs} {problem}; it begins {data[:80]!r}")


def _peak_bytes(decoder: Decoder, sample: bytes) -> int:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with suppress(ZooidError):  # it may take more than these bytes to be content
        decoder.decode(sample)
    return tracemalloc.get_traced_memory()[1] - before


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextmanager
def _unlogged() -> Iterator[None]:
    """What is ignored is logged, by a line for each of thousands of inputs."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _time_limits() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
