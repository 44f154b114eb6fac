"""Deadlines and budgets of real runs: they hold, with a coordinator and without one, and the run can go on later."""

import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from msgspec import structs

import zooid
from lab.members import pids_in
from lab.waiting import wait_until
from tests.integration.interpreters import fork_zygote
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.ranks import FORKING
from tests.integration.recording import RecordingPlatform, still_running
from tests.integration.reference import Trained, train_composed_layers
from tests.processes import is_gone
from zooid.coordinator.plans.offer_names import resolve_offer
from zooid.core.errors import InputError, PlanError, TrainingError
from zooid.core.plans.plan import Limits, Plan, Prediction
from zooid.core.records import decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.allowance import PriceList
from zooid.core.runs.events import (
    Event,
    LimitsEndangered,
    Metered,
    PriceChanged,
    RosterChanged,
    StepCommitted,
    StoppedEarly,
)
from zooid.core.runs.member_records import MemberHandle
from zooid.store import open_store, read_history
from zooid.store.checkpoint_index import last_step, read_manifest

pytestmark = pytest.mark.timeout(240)

NUM_STEPS = 200
STEP_S = 0.2
SLOW = f"""
import time
from pathlib import Path


def wait(event):
    if not Path(__file__).with_suffix(".fast").exists():
        time.sleep({STEP_S})


"""
"""Every step takes a known time at least: the first member waits after it, and the others for the first. A file ends
that."""
USD_PER_S = 1.0
"""Price of one member."""


@dataclass
class Seen:
    """Events of a run, and what is done when one of them comes."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def num_steps(self) -> int:
        return sum(isinstance(event, StepCommitted) for event in self.events)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained]:
    fields = {"epochs": str(NUM_STEPS // 4), "on_event": "wait"}
    job_file = write_job(tmp_path_factory.mktemp("job") / "job.py", extra=SLOW, fields=fields)
    return job_file, train_composed_layers(job_file)


@pytest.fixture(scope="module")
def start_s(tmp_path_factory: pytest.TempPathFactory, forking: RecordingPlatform) -> float:
    """How long members may take to start, on this machine as busy as it is now. The first ones import much, and do not
    count."""
    folder = tmp_path_factory.mktemp("short")
    short = write_job(folder / "short.py", fields={"epochs": "1"})
    plan = plan_by_hand(short, num_replicas=2, cuts=(), transport="tcp")
    for number in range(2):
        began_s, seen = time.monotonic(), Seen()
        zooid.train(short, store=(folder / str(number)).as_uri(), plan=plan, platform=forking, on_event=seen)
    return 1.5 * (time.monotonic() - began_s)


def a_plan(job_file: Path, *, run_s: float | None = None) -> Plan:
    """Two members that cost a dollar a second each."""
    plan = plan_by_hand(job_file, num_replicas=2, cuts=(), transport="tcp")
    offer = structs.replace(resolve_offer("local"), usd_per_hour=3600 * USD_PER_S, billing_grain_s=0.001)
    stages = tuple(structs.replace(stage, offer=offer.name) for stage in plan.stages)
    predicted = plan.prediction
    if run_s is not None:
        predicted = Prediction(
            step_s=1.0, num_steps=predicted.num_steps, startup_s=0.0, run_s=run_s, run_usd=2 * run_s, cost_terms=()
        )
    return structs.replace(plan, offers=(offer,), stages=stages, predicted=predicted)


def test_limits_that_cannot_hold_are_told_before_anything_starts(
    job: tuple[Path, Trained], tmp_path: Path, forking: RecordingPlatform
) -> None:
    job_file, _ = job
    url = (tmp_path / "run").as_uri()
    num_launched = len(forking.launched)
    for limits, message in (
        (Limits(budget_usd=10.0), r"the plan may cost \$240.*, and the budget is \$10.00; allow at least that"),
        (Limits(deadline_s=60.0), "the plan may take 2m, and the deadline is 1m; allow at least that"),
    ):
        with pytest.raises(PlanError, match=message):
            zooid.train(job_file, store=url, plan=a_plan(job_file, run_s=120.0), limits=limits, platform=forking)
    assert len(forking.launched) == num_launched
    assert open_store(url).is_empty()


def test_a_run_ends_by_its_deadline_with_a_checkpoint_and_goes_on_later(
    job: tuple[Path, Trained], tmp_path: Path, forking: RecordingPlatform, start_s: float
) -> None:
    job_file, reference = job
    url, seen = (tmp_path / "run").as_uri(), Seen()
    plan, deadline_s = a_plan(job_file), start_s + 4.0
    began_s = time.monotonic()
    limits = Limits(deadline_s=deadline_s)
    result = zooid.train(job_file, store=url, plan=plan, limits=limits, on_event=seen, platform=forking)
    assert time.monotonic() - began_s <= deadline_s + STEP_S
    assert "after its deadline" in result.stopped
    assert 0 < seen.num_steps < NUM_STEPS
    [endangered] = seen.of(LimitsEndangered)
    assert isinstance(endangered, LimitsEndangered)
    assert "after its deadline" in endangered.reason
    assert "later would hold" in endangered.would_hold
    assert still_running(list(forking.pids.values())) == []
    assert last_step(open_store(url)) == seen.num_steps
    with pytest.raises(InputError, match=r"has stopped at a limit: .* give new limits"):
        zooid.resume(url, platform=forking)
    fast = job_file.with_suffix(".fast")
    fast.write_text("")
    try:  # with the plan, so that nothing has to be measured
        finished = zooid.resume(url, plan=a_plan(job_file), limits=Limits(deadline_s=1000.0), platform=forking)
    finally:
        fast.unlink()
    assert finished.stopped == ""
    assert finished.usd > result.usd
    assert reference.weight_difference(url) <= 1e-9


def test_a_run_whose_deadline_passes_while_its_members_start_ends_before_its_first_step(
    job: tuple[Path, Trained], tmp_path: Path, forking: RecordingPlatform
) -> None:
    job_file, _ = job
    url, seen = (tmp_path / "run").as_uri(), Seen()
    with pytest.raises(TrainingError, match=r"a limit of the run in .* was reached before its first step"):
        zooid.train(
            job_file,
            store=url,
            plan=a_plan(job_file, run_s=0.001),
            limits=Limits(deadline_s=0.01),
            on_event=seen,
            platform=forking,
        )
    assert seen.num_steps == 0
    assert still_running(list(forking.pids.values())) == []


def test_a_price_that_triples_stops_the_run_sooner_and_never_above_its_budget(
    job: tuple[Path, Trained], tmp_path: Path, forking: RecordingPlatform, start_s: float
) -> None:
    job_file, _ = job
    url, budget_usd = (tmp_path / "run").as_uri(), 3 * start_s * USD_PER_S + 20.0
    store = open_store(url)

    class Tripling(Seen):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, StepCommitted) and event.step == 3:
                tripled = PriceList(usd_per_hour={"local": 3 * 3600 * USD_PER_S})
                store.put(keys.PRICES, encode_record(tripled))

    seen = Tripling()
    limits = Limits(budget_usd=budget_usd)
    result = zooid.train(job_file, store=url, plan=a_plan(job_file), limits=limits, on_event=seen, platform=forking)
    step_usd = 2 * 3 * USD_PER_S * 2 * STEP_S  # two steps' time, since the machine is busy
    assert result.usd <= budget_usd + step_usd
    assert result.usd > budget_usd - 4 * step_usd - 2 * 3 * USD_PER_S, "it has not stopped for nothing"
    assert "and its budget is $" in result.stopped
    [changed] = seen.of(PriceChanged)
    assert isinstance(changed, PriceChanged)
    assert changed.usd_per_hour == 3 * changed.before_usd_per_hour
    assert seen.of(LimitsEndangered), "and it was told"
    assert 4 < seen.num_steps < NUM_STEPS
    assert read_manifest(store, last_step(store)).step == seen.num_steps


def test_a_member_that_joins_is_paid_from_its_start_and_the_budget_holds(
    job: tuple[Path, Trained], tmp_path: Path, forking: RecordingPlatform, start_s: float
) -> None:
    """A third member joins soon. Nobody waits until the bill is stored again, which takes longer than the run."""
    job_file, _ = job
    url, budget_usd = (tmp_path / "run").as_uri(), 3 * start_s * USD_PER_S + 12.0

    class Scaling(Seen):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, StepCommitted) and event.step == 3:
                zooid.scale(url, 3, 1)

    seen = Scaling()
    limits = Limits(budget_usd=budget_usd)
    result = zooid.train(job_file, store=url, plan=a_plan(job_file), limits=limits, on_event=seen, platform=forking)
    changes = [event for event in seen.events if isinstance(event, RosterChanged)]
    assert [len(event.members) for event in changes] == [3, 3]
    step_usd = 3 * USD_PER_S * 2 * STEP_S  # two steps' time, since the machine is busy
    assert budget_usd - 4 * step_usd - 3 * USD_PER_S < result.usd <= budget_usd + step_usd
    assert "and its budget is $" in result.stopped
    bills = [event for event in seen.events if isinstance(event, Metered)]
    billed = {member.member: member.tariff.started_at_s for bill in bills for member in bill.running}
    assert billed.keys() - {"preparer"} == {"r0s0", "r1s0", "r2s0-1"}
    first_step = next(event for event in seen.events if isinstance(event, StepCommitted))
    assert billed["r2s0-1"] > first_step.at_s


def coordinate(url: str, job_file: Path, plan: Plan, limits: Limits, end: Connection) -> None:
    """What runs in the process of a coordinator that will be killed."""
    fork_zygote()
    zooid.train(job_file, store=url, plan=plan, limits=limits, on_event=end.send, platform=RecordingPlatform())


def is_near(bill: Metered, limits: Limits, began_s: float) -> bool:
    """Whether members train, and will stop within a few steps."""
    if bill.trains_from_s is None or bill.at_s < bill.trains_from_s + 1.0:
        return False
    if limits.deadline_s is not None:
        return bill.at_s > began_s + limits.deadline_s - NEAR_S
    assert limits.budget_usd is not None
    return bill.usd > limits.budget_usd - 2 * USD_PER_S * NEAR_S


NEAR_S = 3.0
"""Time before a limit; members need one second of it for the last checkpoint and their end."""


@pytest.mark.parametrize("kind", ["deadline", "budget"])
def test_members_hold_the_limits_without_a_coordinator(
    job: tuple[Path, Trained], tmp_path: Path, start_s: float, kind: str
) -> None:
    """The coordinator is killed just before the limit. Members stop by themselves with a checkpoint."""
    job_file, _ = job
    allowed_s = 2 * start_s + 5.0  # its zygote is new, and forks its first members
    limits = Limits(deadline_s=allowed_s) if kind == "deadline" else Limits(budget_usd=2 * USD_PER_S * allowed_s)
    url = (tmp_path / "run").as_uri()
    own_end, its_end = FORKING.Pipe(duplex=False)
    began_s = time.time()
    process = FORKING.Process(target=coordinate, args=(url, job_file, a_plan(job_file), limits, its_end))
    process.start()
    its_end.close()
    try:
        while not (isinstance(event := own_end.recv(), Metered) and is_near(event, limits, began_s)):
            pass
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        store = open_store(url)
        handles = [decode_record(bytes(store.get(key)), MemberHandle, key) for key in store.list(keys.HANDLES)]
        pids = list(pids_in(store).values())
        assert len(pids) == 2
        wait_until(lambda: all(map(is_gone, pids)))
    finally:
        process.kill()
    ended_s = time.time()
    stops = [event for event in read_history(store) if isinstance(event, StoppedEarly)]
    assert len(stops) == 1
    assert stops[0].by_request
    assert 4 <= stops[0].step < NUM_STEPS
    ledger = read_manifest(store, last_step(store)).ledger
    assert (last_step(store), ledger.stopped) == (stops[0].step, stops[0].reason)
    step_s = 2 * STEP_S  # the machine is busy
    if limits.deadline_s is not None:
        assert ended_s <= began_s + limits.deadline_s + step_s
    else:
        assert limits.budget_usd is not None
        started_s = [handle.launched_at_s for handle in handles if handle.member.startswith("r")]
        members_usd = sum(ended_s - at_s for at_s in started_s) * USD_PER_S
        assert members_usd <= limits.budget_usd + 2 * step_s * USD_PER_S
