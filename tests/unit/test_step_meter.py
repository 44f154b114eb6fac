"""What members measure while they train: which steps they keep, what they write and when, and how it is read back."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from tests.unit.measured_runs import measured_members
from tests.unit.predicted import a_plan, a_profile, owned
from tests.unit.profiles import store_links
from zooid.coordinator.plans.earlier_runs import learn_from_runs
from zooid.coordinator.runs.first_roster import roster_for
from zooid.core.errors import InputError
from zooid.core.plans.plan import Plan
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.roster import Roster, RosterMember, Ruling, StepNumbers
from zooid.core.runs.step_measurements import StepMeasurements, num_writes
from zooid.schedule.actions import Action, Kind
from zooid.store import ObjectStore, open_store
from zooid.store.member_measurements import read_measurements
from zooid.store.stored_records import read_record
from zooid.worker.member.seat import Seat
from zooid.worker.step.executor import ActionRun, Recording
from zooid.worker.step.step_meter import StepMeter

MADE = a_profile(links=store_links(20e6, 0.003))


class CountingStore:
    """A store that counts what is put."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.puts: list[str] = []

    def put(self, key: str, data: bytes) -> None:
        self.puts.append(key)
        self._store.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def seat_of(plan: Plan, rank: int = 0) -> Seat:
    return Seat(roster_for(plan, "run-7", 0, 0), rank, torch.device("cpu"))


def wait_for_writing() -> None:
    for thread in threading.enumerate():
        if thread.name == "measurements":
            thread.join()


def recording(start_s: float, scale: float = 1.0) -> Recording:
    """Two grains of 0.1 s forward and 0.2 s backward, a message of 0.05 s, and a commit of 0.04 s."""
    grains = [
        (Action(0, Kind.FORWARD, 0), 0.0, 0.1, 0),
        (Action(0, Kind.FORWARD, 1), 0.1, 0.2, 0),
        (Action(0, Kind.SEND_FORWARD, 0), 0.1, 0.15, 4000),
        (Action(0, Kind.SEND_FORWARD, 1), 0.2, 0.25, 4000),
        (Action(0, Kind.RECEIVE_BACKWARD, 0), 0.25, 0.3, 2000),
        (Action(0, Kind.RECEIVE_BACKWARD, 1), 0.3, 0.35, 2000),
        (Action(0, Kind.BACKWARD, 0), 0.3, 0.5, 0),
        (Action(0, Kind.BACKWARD, 1), 0.5, 0.7, 0),
        (Action(0, Kind.COMMIT), 0.7, 0.74, 0),
    ]
    runs = [
        ActionRun(action, start_s + scale * begin_s, start_s + scale * end_s, num_bytes)
        for action, begin_s, end_s, num_bytes in grains
    ]
    return Recording("r0s0", 0.0, start_s, runs)


def test_a_member_writes_medians_now_and_then(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path.as_uri()))
    seat = seat_of(a_plan(MADE, owned(), stages=2))
    seat.sum_clock.last_s = 0.03
    meter = StepMeter(store, seat, [0.2, 0.4, 0.3])  # type: ignore[arg-type]
    for step in range(100):
        meter.note(step, recording(4.0 * step, scale=3.0 if step in (0, 1, 7) else 1.0))
        wait_for_writing()
    meter.finish()
    assert store.puts == [keys.measurements("r0s0", 0)] * num_writes(100)
    found = read_record(store, store.puts[0], StepMeasurements)  # type: ignore[arg-type]
    assert (found.member, found.replica, found.stage, found.num_grains) == ("r0s0", 0, 0, 2)
    assert found.num_steps == 100
    assert 32 <= found.num_sampled <= 64
    assert found.forward.median_s == pytest.approx(0.1)
    assert found.backward.median_s == pytest.approx(0.2)
    assert found.update.median_s == pytest.approx(0.01)
    assert found.vote.median_s == pytest.approx(0.03)
    assert found.step.median_s == pytest.approx(0.74)
    assert found.between.median_s == pytest.approx(4 - 0.74)
    assert found.starts_s["0B1"] == pytest.approx(0.5)
    assert [(each.kind, each.peer, each.num_bytes) for each in found.messages] == [
        ("SEND_F", "r0s1", 4000),
        ("RECV_B", "r0s1", 2000),
    ]
    assert found.messages[0].time.median_s == pytest.approx(0.05)
    assert found.checkpoint is not None
    assert found.checkpoint.median_s == pytest.approx(0.3)


def test_the_first_steps_and_gaps_in_which_other_steps_ran_do_not_count(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    meter = StepMeter(store, seat_of(a_plan(MADE, owned(), stages=2)))
    for step in (0, 1, 2, 3, 10, 11):  # steps 4 to 9 had smaller batches
        meter.note(step, recording(4.0 * step, scale=5.0 if step < 1 else 1.0))
    meter.finish()
    found = read_record(store, keys.measurements("r0s0", 0), StepMeasurements)
    assert (found.num_steps, found.num_sampled) == (6, 4)
    assert found.between.median_s == pytest.approx(4 - 0.74)
    assert found.between.spread == 0
    assert found.forward.median_s == pytest.approx(0.1)


def test_a_step_costs_less_than_a_five_hundredth_of_fifty_milliseconds(tmp_path: Path) -> None:
    """Of the time of this thread, on the average over 2000 steps with 8 grains each."""
    meter = StepMeter(open_store(tmp_path.as_uri()), seat_of(a_plan(MADE, owned(), stages=2)))
    runs = recording(0.0).runs * 4
    recordings = [Recording("r0s0", 0.0, float(step), runs) for step in range(2000)]
    start_s = time.thread_time()
    for step, recorded in enumerate(recordings):
        meter.note(step, recorded)
    assert (time.thread_time() - start_s) / 2000 < 0.002 * 0.05
    meter.finish()


def test_a_planned_change_writes_what_a_long_roster_has_measured(tmp_path: Path) -> None:
    """A roster of fewer than 20 steps leaves nothing."""
    for num_steps in (10, 30):
        store = CountingStore(open_store(tmp_path.as_uri()))
        meter = StepMeter(store, seat_of(a_plan(MADE, owned(), stages=2)))  # type: ignore[arg-type]
        for step in range(num_steps):
            meter.note(step, recording(4.0 * step))
        wait_for_writing()
        meter.turn_away()
        wait_for_writing()
        assert len(store.puts) == (2 if num_steps == 30 else 0)
    found = read_record(store, keys.measurements("r0s0", 0), StepMeasurements)  # type: ignore[arg-type]
    assert found.num_steps == 30


def write_run(folder: Path, plan: Plan, *rosters: tuple[Roster, list[StepMeasurements]]) -> str:
    store = open_store(folder.as_uri())
    store.put(keys.plan(0), encode_record(plan))
    for roster, members in rosters:
        store.put(keys.roster(roster.number, roster.change), encode_record(roster))
        for member in members:
            store.put(keys.measurements(member.member, roster.number, roster.change), encode_record(member))
    return store.url


class TestReading:
    def test_the_newest_roster_of_which_all_have_written_counts(self, tmp_path: Path) -> None:
        """One of three replicas is lost; later a second one, and the run ends at once."""
        plan = a_plan(MADE, owned(), replicas=3)
        first = roster_for(plan, "run-7", 0, 0)
        ruling = Ruling(kind="unfinished")
        second = structs.replace(first, change=1, members=first.members[:2], shares=(9, 7), ruling=ruling)
        third = structs.replace(second, change=2, members=first.members[:1], shares=(16,))
        shrunk = structs.replace(plan, num_replicas=2, shares=(9, 7), grain_size=1)
        plan = structs.replace(plan, grain_size=1, shares=(6, 5, 5))
        measured = measured_members(shrunk, {"own": MADE}, MADE.links)
        full = measured_members(plan, {"own": MADE}, MADE.links)
        url = write_run(tmp_path, plan, (first, full), (second, measured), (third, []))
        found = read_measurements(open_store(url))
        assert found.plan.num_replicas == 2
        assert found.plan.shares == (9, 7)
        assert [member.num_grains for member in found.members] == [9, 7]

    def test_a_folder_without_measurements_or_without_a_run_is_refused(self, tmp_path: Path) -> None:
        plan = a_plan(MADE, owned())
        url = write_run(tmp_path, plan, (roster_for(plan, "run-7", 0, 0), []))
        with pytest.raises(InputError, match="has no measurements of all members of a roster: members write them"):
            read_measurements(open_store(url))
        with pytest.raises(InputError, match="holds no run"):
            read_measurements(open_store((tmp_path / "nowhere").as_uri()))

    def test_replicas_keep_their_offers_when_one_is_lost(self, tmp_path: Path) -> None:
        fast, slow = owned(), structs.replace(owned(), name="slow")
        plan = structs.replace(
            a_plan(MADE, fast, replicas=2), offers=(fast, slow), replica_offers=("own", "slow"), grain_size=1, shares=()
        )
        first = roster_for(plan, "run-7", 0, 0)
        survivor = RosterMember(name="r1s0", stage=0, replica=0)
        left = structs.replace(first, change=1, members=(survivor,), shares=(16,), ruling=Ruling(kind="unfinished"))
        alone = structs.replace(plan, num_replicas=1, shares=(16,), replica_offers=("slow",))
        [member] = measured_members(alone, {"own": MADE, "slow": MADE}, MADE.links)
        url = write_run(tmp_path, plan, (first, []), (left, [structs.replace(member, member="r1s0")]))
        assert read_measurements(open_store(url)).plan.replica_offers == ("slow",)

    def test_members_of_two_plans_are_never_mixed(self, tmp_path: Path) -> None:
        """A planned change cuts the model into two stages. Its roster says more than its short successor."""
        plan = a_plan(MADE, owned(), replicas=2)
        first = roster_for(plan, "run-7", 0, 0)
        cut = a_plan(MADE, owned(), stages=2)
        numbers = StepNumbers(loss_sum=1.0, weight=1.0, square_sums=(1.0, 1.0))
        second = structs.replace(
            roster_for(cut, "run-7", 0, 0),
            change=2,
            resume_step=30,
            plan="two-stages",
            ruling=Ruling(kind="planned", numbers=numbers),
            members=(
                RosterMember(name="r0s0-1", stage=0, replica=0),
                RosterMember(name="r0s1-1", stage=1, replica=0),
            ),
        )
        third = structs.replace(second, change=3, resume_step=60)
        before = measured_members(plan, {"own": MADE}, MADE.links)
        renamed = [
            structs.replace(member, member=f"{member.member}-1")
            for member in measured_members(cut, {"own": MADE}, MADE.links)
        ]
        short = [structs.replace(member, num_steps=3, num_sampled=1) for member in renamed]
        url = write_run(tmp_path, plan, (first, before), (second, renamed), (third, short))
        open_store(url).put(keys.changed_plan("two-stages"), encode_record(cut))
        found = read_measurements(open_store(url))
        assert found.plan.layout == cut.layout == "1x2"
        assert [(member.member, member.stage) for member in found.members] == [("r0s0-1", 0), ("r0s1-1", 1)]
        assert found.members == tuple(renamed)

    def test_a_successor_has_the_offer_of_its_seat(self, tmp_path: Path) -> None:
        fast, slow = owned(), structs.replace(owned(), name="slow")
        plan = structs.replace(
            a_plan(MADE, fast, replicas=2), offers=(fast, slow), replica_offers=("own", "slow"), grain_size=1, shares=()
        )
        first = roster_for(plan, "run-7", 0, 0)
        numbers = StepNumbers(loss_sum=1.0, weight=1.0, square_sums=(1.0,))
        after = structs.replace(
            first,
            change=2,
            resume_step=9,
            ruling=Ruling(kind="planned", numbers=numbers),
            members=(first.members[0], structs.replace(first.members[1], name="r1s0-1")),
        )
        members = measured_members(plan, {"own": MADE, "slow": MADE}, MADE.links)
        succeeded = [members[0], structs.replace(members[1], member="r1s0-1")]
        url = write_run(tmp_path, plan, (first, []), (after, succeeded))
        assert read_measurements(open_store(url)).plan.replica_offers == ("own", "slow")


class TestLearning:
    def test_a_run_of_another_model_is_refused(self, tmp_path: Path) -> None:
        plan = a_plan(MADE, owned())
        url = write_run(
            tmp_path, plan, (roster_for(plan, "run-7", 0, 0), measured_members(plan, {"own": MADE}, MADE.links))
        )
        other = structs.replace(MADE, model_fingerprint="other", job="another")
        with pytest.raises(InputError, match=r"run in file://.* trained another model than the profile of another"):
            learn_from_runs({"local": other}, (), [url])

    def test_later_runs_win_and_offers_keep_their_names(self, tmp_path: Path) -> None:
        plan = a_plan(MADE, owned())
        [member] = measured_members(plan, {"own": MADE}, MADE.links)
        urls = []
        for number, factor in enumerate((3.0, 2.0)):
            timing = structs.replace(member.forward, median_s=factor * member.forward.median_s)
            roster = roster_for(plan, "run-7", 0, 0)
            changed = structs.replace(member, forward=timing)
            urls.append(write_run(tmp_path / str(number), plan, (roster, [changed])))
        found = learn_from_runs({"own": MADE, "other": MADE}, (), urls)
        assert found.profiles.keys() == {"own", "other"}
        assert found.profiles["other"] == MADE
        slowdown = found.profiles["own"].layers[0].forward_s(1) / MADE.layers[0].forward_s(1)
        assert slowdown == pytest.approx(2.0)
        assert [row.run for row in found.corrections if row.part == "step"] == urls
