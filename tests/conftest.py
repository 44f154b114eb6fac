"""Options of the whole suite, and which of its tests may run side by side.

`make test` runs it in two parts. First comes what may share the machine, by three processes at once. Each file is run
by one of them, but for a few whose tests share nothing. Then comes the rest, by one process.
"""

import gc
import os
import signal
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: processes with two threads each would
    # wait for one another's cores
os.environ["ZOOID_PRICES"] = "/nowhere/prices"  # what somebody has imported must not decide how a test ends
gc.set_threshold(50_000, 20, 20)  # a trace makes a million objects, and looking through them takes a tenth of its time

MEASURING = (
    "tests/contract/test_group_failures.py::test_an_abort_frees_every_wait_at_once",
    "tests/contract/test_store_uses.py::TestWaiting",
    "tests/integration/test_backend_faults.py::TestInterruptedRank",
    "tests/integration/test_backend_faults.py::TestKilledRank",
    "tests/integration/test_backend_faults.py::TestStoppedRank",
    "tests/integration/test_bill.py",
    "tests/integration/test_budget.py",
    "tests/integration/test_earlier_runs.py::test_a_run_feeds_the_next_plan",
    "tests/integration/test_first_step.py::test_the_first_step_comes_soon",
    "tests/integration/test_job_errors.py::test_a_wrong_job_file_is_refused_within_two_seconds",
    "tests/integration/test_laboratory.py",
    "tests/integration/test_limits.py::TestTime",
    "tests/integration/test_market_runs.py",
    "tests/integration/test_paced_runs.py::TestSpotTraces",
    "tests/integration/test_paced_runs.py::TestTimes",
    "tests/integration/test_paced_runs.py::TestWeights::test_they_are_if_members_join_at_the_same_pace",
    "tests/integration/test_prediction.py",
    "tests/integration/test_probes.py::TestOnLinksThatAreKnown",
    "tests/integration/test_profiles.py::test_offers_are_measured_together_and_kept_apart",
    "tests/integration/test_rehearsed_members.py::test_a_spot_trace_is_replayed",
    "tests/integration/test_shares.py",
    "tests/integration/test_steering.py",
    "tests/integration/test_sweeps.py::test_on_links_that_are_known",
    "tests/unit/test_executor.py::test_a_message_is_timed_by_its_bytes_and_not_by_who_waits_for_it",
    "tests/unit/test_executor.py::test_an_abort_stops_it",
    "tests/unit/test_retrying.py",
    "tests/unit/test_store_transport.py::test_in_a_steady_stream_few_requests_come_too_early",
    "tests/unit/test_store_transport.py::test_it_is_learned_how_far_a_rank_is_behind",
    "tests/unit/test_timing.py",
    "tests/unit/test_traffic.py::test_64_members_with_32_grains_each_are_counted_in_no_time",
)
"""Beginnings of the names of tests that measure time. One that fails is measured again, up to two times, since the
machine may have been busy with something else."""

ALONE = (
    *MEASURING,
    "tests/integration/test_function_run.py",
    "tests/integration/test_handed_over_functions.py",
    "tests/integration/test_limits.py::TestNothingIsLeft",
    "tests/integration/test_namespaces.py::test_everything_is_removed_after_an_error",
    "tests/integration/test_other_machines.py",
    "tests/integration/test_stop.py::test_it_works_from_another_machine",
    "tests/integration/test_training.py::TestDroppedStep",
)
"""Those, others whose members must start in time, and others that look at leftovers while nobody else may sweep."""

LONG = (
    "tests/contract/test_platforms.py",
    "tests/unit/test_specimens.py",
    "tests/integration/test_large_models.py",
    "tests/integration/test_layouts.py",
    "tests/fidelity/test_fidelity.py",
)
"""Files that take some minutes: they come first, so that no process is left with one of them in the end."""

SCATTERED = ("tests/integration/test_docs.py",)
"""Files whose tests share nothing and take long, so that any process may run any of them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="try every variant: all layouts, stages, phases and transports, and long outages; takes over an hour",
    )
    parser.addoption("--real", default="", help="run the suite of platforms on this offer of your own account")
    parser.addoption("--real-store", default="", help="URL of a folder in a store that members on that account reach")
    parser.addoption(
        "--spend-usd", type=float, default=1.0, help="start no member that could bring the cost beyond this"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: needs the machine to itself")
    config.addinivalue_line(
        "markers", "thorough: a variant, or a test that takes minutes; it runs with --thorough only"
    )
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script has started the tests in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise all processes of tests would ignore it


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only tests are wanted that run alone, most files need not be imported."""
    if config.option.markexpr != "alone" or collection_path.suffix != ".py":
        return None
    name = str(collection_path.relative_to(config.rootpath))
    return None if any(each.startswith(name) for each in ALONE) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--thorough"):
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")
        if item.nodeid.startswith(MEASURING):
            item.add_marker(pytest.mark.flaky(reruns=2))
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


class _FileByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a whole file to one process, so that what its tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in SCATTERED else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _FileByFile:
    return _FileByFile(config, log)
