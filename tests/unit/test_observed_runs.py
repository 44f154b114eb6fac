"""What `zooid watch` shows of a run: its history read bit by bit, its members, its cost, and what changed."""

import io
import math
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from tests.unit.test_records import a_plan, a_roster, a_stage, an_offer
from tests.unit.test_resuming import ELSEWHERE, killed_process, lease_of
from zooid.coordinator.runs import lease
from zooid.coordinator.runs.lease import LeaseObserver
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import Evaluation, Ledger
from zooid.core.runs.events import (
    BatchChanged,
    CheckpointSaved,
    Evaluated,
    Event,
    MemberExited,
    MembersAdopted,
    MemberStarted,
    MemberTrained,
    Metered,
    PhaseStarted,
    RosterChanged,
    RunFinished,
    RunStarted,
    StepCommitted,
    StoppedEarly,
    encode_events,
)
from zooid.core.runs.liveness import own_mark
from zooid.core.runs.observed_run import ObservedRun, RunState
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat, Ruling
from zooid.core.runs.spec import Adoption, RunClaim
from zooid.report.run_changes import changes_in
from zooid.report.run_snapshot import RunSnapshot, snapshot_of
from zooid.report.snapshot_view import say_snapshot, snapshot_view
from zooid.store import EventWriter, ObjectStore, open_store, read_history
from zooid.store.history import KnownHistory

URL = "s3://bucket/run-7"


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


def committed(step: int, at_s: float | None = None, **changed: Any) -> StepCommitted:
    fields = {"at_s": 10.0 + step if at_s is None else at_s, "step": step, "epoch": step // 4, "loss": 8.0 - step}
    return StepCommitted(**fields | {"num_samples": 64, "step_s": 0.5} | changed)


def started(at_s: float, first_step: int = 0, **changed: Any) -> RunStarted:
    fields: dict[str, Any] = {
        "at_s": at_s,
        "run": "run-7",
        "store": URL,
        "layout": "2x2",
        "num_steps": 10,
        "first_step": first_step,
        "batch_size": 64,
        "predicted_step_s": 0.4,
        "predicted_run_s": 3600.0,
        "predicted_usd": 4.0,
        "members": ("m0", "m1", "m2", "m3"),
        "prices": "at the prices of a dream",
    }
    return RunStarted(**fields | changed)


def ready(member: str, at_s: float = 9.0) -> MemberStarted:
    return MemberStarted(at_s=at_s, member=member, num_layers=1, parameter_bytes=8)


def after_loss(**changed: Any) -> Roster:
    """Three members go on without m3: m0 and m1 as one pipeline, and m2 as a copy of the first stage."""
    members = tuple(RosterMember(name=f"m{stage}", replica=0, stage=stage) for stage in range(2))
    ruling = Ruling(kind="unfinished")
    fields: dict[str, Any] = {"change": 1, "resume_step": 3, "shares": (8,), "former": ("m3",), "ruling": ruling}
    return a_roster(members=members, copies=(RosterSeat(name="m2", stage=0),), **fields | changed)


class TestHistory:
    def write(self, store: ObjectStore, writer: str, label: tuple[int, int], *events: Event) -> None:
        with EventWriter(store, writer, label[0]) as writing:
            if label[1]:
                writing.turn_to(*label, writer)
            for event in events:
                writing.write(event)

    def test_a_reader_that_comes_again_sees_what_a_new_one_sees(self, store: ObjectStore) -> None:
        """A lost member, an adoption, a roll-back, and a resumed run."""
        known = KnownHistory()

        def check(number: int, num_steps: int) -> None:
            fresh = KnownHistory()
            events = read_history(store, fresh)
            assert read_history(store, known) == events
            assert (known.number, known.claim, known.roster) == (fresh.number, fresh.claim, fresh.roster)
            assert known.num_earlier == fresh.num_earlier
            assert known.number == number
            steps = [event.step for event in events if isinstance(event, StepCommitted)]
            assert steps == list(range(num_steps))

        check(0, 0)
        store.create(keys.CLAIM, encode_record(RunClaim(run="run-7")))
        self.write(store, "coordinator", (0, 0), PhaseStarted(at_s=1.0, phase="prepare"))
        check(0, 0)
        store.create(keys.roster(0), encode_record(a_roster()))
        self.write(store, "coordinator", (0, 0), started(2.0))
        self.write(store, "m0", (0, 0), *(committed(step) for step in range(3)))
        check(0, 3)
        store.create(keys.roster(0, 1), encode_record(after_loss()))
        self.write(store, "m0", (0, 1), committed(3), committed(4))
        check(0, 5)
        store.create(keys.claim(1), encode_record(Adoption(run="run-7", roster=0, nonce="1")))
        self.write(store, "coordinator-000001", (0, 0), MembersAdopted(at_s=20.0, members=("m0", "m1"), step=5))
        self.write(store, "m0", (0, 1), committed(5))
        check(0, 6)
        assert known.claim == 1
        rolled_back = after_loss(change=2, resume_step=2, ruling=Ruling(kind="rolled_back"))
        store.create(keys.roster(0, 2), encode_record(rolled_back))
        check(0, 2)
        self.write(store, "m0", (0, 2), committed(2), committed(3))
        check(0, 4)
        store.create(keys.claim(2), encode_record(RunClaim(run="run-7")))
        check(2, 4)
        store.create(keys.roster(2), encode_record(a_roster(number=2, resume_step=4)))
        self.write(store, "m0", (2, 0), committed(4))
        check(2, 5)
        assert [type(event) for event in known.events()[known.num_earlier :]] == [StepCommitted]

    def test_of_a_long_run_a_sample_is_read_and_then_everything(self, store: ObjectStore) -> None:
        folder = keys.events_of("m0")
        for step in range(1000):
            store.put(f"{folder}/{step:08d}.jsonl", encode_events([committed(step)]))
        known = KnownHistory(max_objects=40)
        steps = [event.step for event in read_history(store, known) if isinstance(event, StepCommitted)]
        assert known.is_sampled
        assert steps[:5] == list(range(5))
        assert steps[-20:] == list(range(980, 1000))
        assert len(steps) == 40
        assert max(after - before for before, after in pairwise(steps)) <= 70, "the sample is even"
        store.put(f"{folder}/{1000:08d}.jsonl", encode_events([committed(1000)]))
        assert len(read_history(store, known)) == 41
        whole = KnownHistory(max_objects=1001)
        assert len(read_history(store, whole)) == 1001
        assert not whole.is_sampled

    def test_a_look_at_a_quiet_run_takes_few_requests(self, store: ObjectStore) -> None:
        store.create(keys.CLAIM, encode_record(RunClaim(run="run-7")))
        store.create(keys.roster(0), encode_record(a_roster()))
        for writer in ("coordinator", "m0"):
            self.write(store, writer, (0, 0), committed(0))
        asked: list[str] = []
        counting: Any = CountingStore(store, asked)
        known = KnownHistory()
        read_history(counting, known)
        asked.clear()
        read_history(counting, known)
        assert sorted(asked) == ["get"] * 4 + ["list_folders"], "a claim, a roster, two writers, and who writes"


class CountingStore:
    """A store that notes what it is asked."""

    def __init__(self, inner: ObjectStore, asked: list[str]) -> None:
        self._inner = inner
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        if name != "url":
            self._asked.append(name)
        return getattr(self._inner, name)


def observed(*events: Event, state: RunState = "training", num_earlier: int = 0, **changed: Any) -> ObservedRun:
    offer = an_offer(usd_per_hour=1.0)
    plan = a_plan(offers=(offer,), stages=(a_stage(0, 3), a_stage(3, 7)))
    fields: dict[str, Any] = {"first_roster": a_roster(), "roster": a_roster(), "plan": plan, "num_steps": 10}
    return ObservedRun(URL, state, 3600.0, list(events), num_earlier, **fields | changed)


class TestSnapshot:
    def test_members_are_those_of_the_roster_and_those_it_has_lost(self) -> None:
        lost = MemberExited(at_s=13.5, member="m3", exit_text="was killed by signal 9 (SIGKILL)")
        events: list[Event] = [started(0.0), *(ready(f"m{i}") for i in range(4)), committed(2), lost]
        shown = snapshot_of(observed(*events, roster=after_loss()))
        assert (shown.layout, shown.num_grains) == ("1x2, planned 2x2", 8)
        rows = [(m.name, m.replica, m.stage, m.layers, m.share, m.state, m.since_s, m.why) for m in shown.members]
        assert rows == [
            ("m0", 0, 0, (0, 3), 8, "trains", 9.0, ""),
            ("m1", 0, 1, (3, 7), 8, "trains", 9.0, ""),
            ("m2", None, 0, (0, 3), None, "trains", 9.0, ""),
            ("m3", None, 1, (3, 7), None, "lost", 13.5, lost.exit_text),
        ]

    def test_a_member_may_start_be_done_be_gone_or_have_ended_with_its_run(self) -> None:
        events: list[Event] = [ready("m0"), ready("m1"), MemberTrained(at_s=11.0, member="m1", peak_bytes=8)]
        gone = frozenset({"m2"})
        states = [member.state for member in snapshot_of(observed(*events, gone=gone)).members]
        assert states == ["trains", "done", "lost", "starting"]
        ended = [member.state for member in snapshot_of(observed(*events, state="interrupted")).members]
        assert ended == ["ended", "done", "ended", "ended"]

    def test_members_of_an_earlier_part_do_not_count(self) -> None:
        earlier: list[Event] = [ready("m0"), MemberTrained(at_s=11.0, member="m0", peak_bytes=8)]
        shown = snapshot_of(observed(*earlier, started(20.0, 4), ready("m1"), num_earlier=2))
        assert [member.state for member in shown.members] == ["starting", "trains", "starting", "starting"]

    def test_time_left_is_that_of_the_clock_and_throughput_that_of_steps(self) -> None:
        steps: list[Event] = [committed(step, at_s=100.0 + 2.0 * step) for step in range(5)]
        shown = snapshot_of(observed(started(90.0), *steps))
        assert (shown.step, shown.loss, shown.step_s, shown.samples_per_s) == (5, 4.0, 0.5, 128.0)
        assert shown.left_s == pytest.approx(2.0 * 5)
        assert snapshot_of(observed(started(90.0), *steps, state="stopped", saved_step=5)).left_s is None

    def test_a_run_that_nobody_trains_has_the_steps_of_its_checkpoint(self) -> None:
        assert snapshot_of(observed(committed(6), state="interrupted", saved_step=4)).step == 4

    def test_what_a_sample_of_events_lacks_is_in_the_last_checkpoint(self) -> None:
        known = [Evaluation(step=step, numbers={"loss": 0.5, "accuracy": "nan"}) for step in (2, 4)]
        seen = Evaluated(at_s=9.0, epoch=0, step=4, loss=0.25, metrics={}, num_samples=8, wall_s=1.0)
        ledger = Ledger(evaluations=tuple(known), best_step=4)
        shown = snapshot_of(observed(committed(5), seen, ledger=ledger, ledger_step=4))
        assert [(each.step, each.numbers["loss"], each.at_s) for each in shown.evaluations] == [
            (2, 0.5, None),
            (4, 0.25, 9.0),
        ]
        assert [(each.step, each.is_best, each.at_s) for each in shown.checkpoints] == [(4, True, None)]

    def test_a_long_run_has_a_short_curve_and_few_of_everything(self) -> None:
        steps = [committed(step, loss=1.0 if step else math.nan) for step in range(1000)]
        saved = [CheckpointSaved(at_s=1.0, step=step, url=URL) for step in range(100)]
        shown = snapshot_of(observed(*steps, *saved))
        assert len(shown.loss_curve) == 32
        assert shown.loss_curve[1:] == (1.0,) * 31
        assert len(shown.checkpoints) == 20


class TestCost:
    def test_lost_members_are_paid_until_they_end(self) -> None:
        """Four members at a dollar an hour, one of which was lost after half of it."""
        lost = MemberExited(at_s=1800.0, member="m3", exit_text="was killed")
        assert snapshot_of(observed(started(0.0), lost)).usd == pytest.approx(3.5)

    def test_a_part_that_ended_costs_what_it_said_and_others_what_was_predicted_for_their_time(self) -> None:
        finished = RunFinished(at_s=100.0, wall_s=100.0, step_s=1.0, usd=0.25, checkpoint=URL)
        killed: list[Event] = [started(200.0, 2), committed(2, at_s=1100.0)]
        now = observed(started(0.0), finished, *killed, started(1800.0, 3), num_earlier=4)
        assert snapshot_of(now).usd == pytest.approx(0.25 + 4.0 * 900 / 3600 + 4 * 0.5)

    def test_adopted_members_are_paid_from_their_own_start(self) -> None:
        adopted: list[Event] = [started(1700.0, 3), MembersAdopted(at_s=1700.0, members=("m0",), step=3)]
        assert snapshot_of(observed(started(0.0), *adopted)).usd == pytest.approx(4.0)
        earlier: list[Event] = [started(0.0), *adopted, committed(3, at_s=1800.0), started(3600.0, 4)]
        assert snapshot_of(observed(*earlier, num_earlier=4)).usd == pytest.approx(2.0)

    def test_a_stored_bill_carries_what_came_before_it_and_grows_while_the_run_goes_on(self) -> None:
        bill = Metered(at_s=3000.0, usd=7.0, usd_per_s=0.01)
        billed: list[Event] = [
            started(0.0),
            Metered(at_s=900.0, usd=2.0),
            started(1800.0, 3),
            bill,
        ]
        assert snapshot_of(observed(*billed, num_earlier=2)).usd == pytest.approx(7.0 + 600 * 0.01)
        assert snapshot_of(observed(*billed, num_earlier=2, state="interrupted")).usd == pytest.approx(7.0)
        unbilled: list[Event] = [started(0.0), committed(0, at_s=900.0), started(1800.0, 1), bill]
        assert snapshot_of(observed(*unbilled, num_earlier=2)).usd == pytest.approx(4.0 * 900 / 3600 + 7.0 + 6.0)
        unknown = started(0.0, predicted_usd=None, predicted_run_s=None)
        assert snapshot_of(observed(unknown, started(1800.0, 1), bill, num_earlier=1)).usd is None

    def test_a_change_of_the_batch_changes_the_number_of_steps(self) -> None:
        change = BatchChanged(at_s=12.0, step=4, batch_size=128, rate_factor=0.75, num_steps=7)
        events: list[Event] = [started(0.0), *(committed(step) for step in range(4)), change]
        shown = snapshot_of(observed(*events))
        assert shown.num_steps == 7
        assert "batches of 128 samples, learning rate × 0.75" in shown.changes[-1].text
        assert snapshot_of(observed(*events, state="interrupted", num_steps=9)).num_steps == 9

    def test_what_was_never_predicted_is_not_known(self) -> None:
        unknown = started(0.0, predicted_usd=None, predicted_run_s=None)
        assert snapshot_of(observed(unknown, started(1800.0, 3), num_earlier=1)).usd is None


def test_changes_say_what_happened_and_why() -> None:
    events: list[Event] = [
        started(1.0),
        MemberExited(at_s=2.0, member="m3", exit_text="was killed by signal 9 (SIGKILL)"),
        RosterChanged(at_s=3.0, change=1, members=("m0", "m1", "m2"), step=5, ruling="rolled_back", wall_s=0.5),
        started(4.0, 5),
        MembersAdopted(at_s=4.0, members=("m0", "m1", "m2"), step=5),
        RosterChanged(at_s=5.0, change=2, members=("m0",), step=6, ruling="stands", wall_s=0.25),
        StoppedEarly(at_s=6.0, step=8, reason="zooid stop asked for it", by_request=True),
        started(7.0, 8, layout="1x1", members=("r0s0",)),
        StoppedEarly(at_s=8.0, step=9, reason="loss was not better (job.monitor)"),
        RunFinished(at_s=9.0, wall_s=90.0, step_s=1.0, usd=0.0, checkpoint=URL),
    ]
    assert [(change.at_s, change.step, change.text) for change in changes_in(events)] == [
        (1.0, 0, "began as 2x2 with 4 members"),
        (2.0, None, "m3 was killed by signal 9 (SIGKILL)"),
        (3.0, 5, "m0, m1 and m2 go on without m3 after 500ms: all go back to the last checkpoint"),
        (4.0, 5, "another coordinator adopted m0, m1 and m2"),
        (5.0, 6, "m0 goes on without m1 and m2 after 250ms: the step in flight stands"),
        (6.0, 8, "stopped: zooid stop asked for it"),
        (7.0, 8, "resumed as 1x1 with 1 member"),
        (8.0, 9, "stopped early: loss was not better (job.monitor)"),
        (9.0, None, "all members have ended after 1m30s"),
    ]


class TestViews:
    EVENTS: tuple[Event, ...] = (
        started(0.0, prices="at the prices of [bold]nobody[/bold]"),
        *(ready(f"m{i}") for i in range(4)),
        *(committed(step) for step in range(3)),
        Evaluated(at_s=13.0, epoch=0, step=3, loss=0.5, metrics={"\x1b[2Jaccuracy": 0.75}, num_samples=8, wall_s=1.0),
        CheckpointSaved(at_s=14.0, step=3, url=f"{URL}/checkpoints/00000003", is_best=True),
    )

    def snapshot(self, state: RunState = "training", **changed: Any) -> RunSnapshot:
        return snapshot_of(observed(*self.EVENTS, state=state, **changed))

    @pytest.mark.parametrize("width", [80, 120])
    def test_a_picture_fits_the_terminal_and_shows_foreign_text_literally(self, width: int) -> None:
        console = Console(file=io.StringIO(), width=width)
        with console.capture() as shown:
            say_snapshot(console, self.snapshot("interrupted", saved_step=3))
        lines = shown.get().splitlines()
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert "\x1b" not in text
        for part in ("\\x1b[2Jaccuracy 0.7500", "[bold]nobody[/bold]", "step 3 (best)", "4 of 8", "began as 2x2 with"):
            assert part in text
        assert lines[0] == "run run-7  interrupted  ·  2x2  ·  over store"
        assert lines[-1] == f"to continue: zooid resume {URL}"

    def test_lines_tell_everything_once(self) -> None:
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as shown, snapshot_view(console, as_json=False) as view:
            view.show(self.snapshot())
            view.show(structs.replace(self.snapshot(), at_s=3601.0))
            view.show(self.snapshot("unattended"))
        texts = [line.partition("  ")[2] for line in shown.get().splitlines()]
        assert texts == [
            "began as 2x2 with 4 members",
            "evaluated: loss 0.5000  \\x1b[2Jaccuracy 0.7500  after step 3",
            "checkpoint of step 3 (best)",
            "training  step 3/10  loss 6.0000  128 samples/s  $4.00  7s left",
            "training without a coordinator  step 3/10  loss 6.0000  128 samples/s  $4.00  7s left  "
            f"to supervise its members again: zooid resume {URL}",
        ]

    def test_json_tells_only_what_is_new(self) -> None:
        console = Console(file=io.StringIO())
        with snapshot_view(console, as_json=True) as view:
            for snapshot in (self.snapshot(), structs.replace(self.snapshot(), at_s=3601.0), self.snapshot("stopped")):
                view.show(snapshot)
        file: Any = console.file
        assert [line.partition('"state":"')[2][:8] for line in file.getvalue().splitlines()] == ["training", 'stopped"']


class TestLease:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease, "_POLL_S", 0.0)

    def test_a_process_of_this_machine_is_looked_up(self, store: ObjectStore) -> None:
        observer = LeaseObserver(store, 3)
        assert observer.look() == "gone"
        store.put(keys.lease(3), lease_of(structs.replace(own_mark(), pid=1, started=init_started())))
        assert observer.look() == "alive"
        store.put(keys.lease(3), lease_of(killed_process()))
        assert observer.look() == "silent"

    def test_another_machine_is_heard_or_falls_silent(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        observer = LeaseObserver(store, 0)
        store.put(keys.lease(0), lease_of(ELSEWHERE))
        assert observer.look() == observer.look() == "unsure"
        store.put(keys.lease(0), lease_of(ELSEWHERE) + b"\n")
        assert observer.look() == observer.look() == "alive"
        monkeypatch.setattr(lease, "SILENCE_S", 0.0)
        assert observer.look() == "silent"
        store.delete([keys.lease(0)])
        assert observer.look() == "gone"


def init_started() -> str:
    """When the first process of this machine has started."""
    return Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
