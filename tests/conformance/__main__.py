"""Runs the suite on Gloo and on zooid and compares: `python -m tests.conformance --ranks 2 --transport tcp`.

Exits with 1 when there is a test that Gloo passes, that is no exception, and that zooid fails or skips.
"""

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import Progress

from tests.conformance.measurement import Configuration, Measurement, Outcome
from tests.conformance.selection import EXCEPTIONS, select_sample


def main() -> int:
    options = _parse()
    # What takes seconds to import is imported before the measuring processes are forked.
    import torch.testing._internal.common_distributed  # noqa: F401

    problems: list[str] = []
    needless = set(EXCEPTIONS)
    for num_ranks in options.ranks:
        named = options.only or (select_sample(num_ranks) if options.sample else ())
        gloo = Configuration("gloo", num_ranks, limit_s=options.limit_s)
        if options.sample:  # which was chosen from what Gloo passes
            passed = list(named)
        else:
            by_gloo = _measure(gloo, named)
            passed = [outcome.test for outcome in by_gloo if outcome.status == "passed"]
            problems += [f"{gloo.title}: {test} does not pass" for test in named if test not in passed]
        if not passed:
            continue
        for transport in options.transport:
            zooid = replace(gloo, backend="zooid", transport=transport)
            missed = [outcome for outcome in _measure(zooid, passed) if outcome.status != "passed"]
            needless -= {outcome.test for outcome in missed}
            problems += [
                f"{zooid.title}: {outcome.test} {outcome.status}: {_describe(outcome, details=options.details)}"
                for outcome in missed
                if outcome.test not in EXCEPTIONS
            ]
    if not named:
        problems += [f"{test} passes everywhere and needs no exception" for test in needless]
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "zooid passes what Gloo passes")
    return 1 if problems else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--ranks", type=_numbers, default=[2, 3], help="numbers of ranks, such as 2,3")
    parser.add_argument("--transport", type=_transports, default=["file", "tcp"], help="file, tcp or file,tcp")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these tests of the suite alone")
    parser.add_argument("--sample", action="store_true", help="a sample of what Gloo passes, on zooid alone")
    parser.add_argument("--limit-s", type=int, default=Configuration.limit_s, help="for one test")
    parser.add_argument("--details", action="store_true", help="print the tracebacks of tests that zooid fails")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _transports(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= {"file", "tcp"}:
        raise argparse.ArgumentTypeError(f"{text!r} names a transport other than file and tcp")
    return names


def _measure(configuration: Configuration, tests: Sequence[str]) -> list[Outcome]:
    outcomes = []
    duration_s = 0.0
    # Forked before the progress bar starts its thread.
    with (
        contextlib.closing(Measurement(configuration, tests)) as measurement,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task(configuration.title, total=measurement.num_tests)
        for outcome in measurement:
            outcomes.append(outcome)
            duration_s += outcome.duration_s
            progress.update(task, advance=1)
    counts = Counter(outcome.status for outcome in outcomes)
    print(
        f"{configuration.title}: {counts['passed']} passed, {counts['skipped']} skipped, {counts['failed']} failed, "
        f"in {duration_s:.0f} s",
        flush=True,
    )
    return outcomes


def _describe(outcome: Outcome, *, details: bool) -> str:
    """All of the reason, or the first line that names an error of a rank."""
    if details:
        return outcome.reason
    lines = [line.strip() for line in outcome.reason.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line and "exited with error code" not in line]
    return (errors or lines or ["no reason given"])[0]


if __name__ == "__main__":
    sys.exit(main())
