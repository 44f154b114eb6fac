"""Going on with a run: from its last checkpoint, in any layout, by one coordinator at a time, or a clear refusal."""

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import zooid
from tests.unit.profiles import layer, link
from tests.unit.profiles import profile as a_profile
from tests.unit.scripted_runs import (
    NUM_STEPS,
    SAMPLES,
    ScriptedPlatform,
    a_plan,
    committed,
    write_checkpoint,
    write_run,
)
from zooid.cli.options import checkpoints_from
from zooid.coordinator import resumable_step
from zooid.coordinator.runs import cleanup, lease, supervision
from zooid.coordinator.runs.heard_members import HeardMembers
from zooid.coordinator.runs.supervision import Run
from zooid.core.errors import CheckpointError, InputError, JobError, MemberFailed, PlanError, Superseded
from zooid.core.plans.plan import Limits, Plan
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import STORE_SITE, Link, Links
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.runs.events import Event, MembersAdopted, MemberTrained, PhaseStarted, RunStarted, StepCommitted
from zooid.core.runs.liveness import ProcessMark, is_alive, own_mark
from zooid.core.runs.member_records import MemberEnd, MemberHandle
from zooid.core.runs.roster import Roster
from zooid.core.runs.spec import RunClaim
from zooid.platforms import Exit, Launch
from zooid.store import EventWriter, Fence, ObjectStore, clear, fences, open_store, read_history


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return write_run(tmp_path)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_HEARTBEAT_S", 0.02)
    monkeypatch.setattr(lease, "SILENCE_S", 1.0)
    monkeypatch.setattr(lease, "_POLL_S", 0.02)
    monkeypatch.setattr(lease, "_MAX_POLL_S", 0.1)
    monkeypatch.setattr(supervision, "GRACE_S", 0.1)
    monkeypatch.setattr(fences, "FENCE_FRESH_S", 0.05)


def local_links() -> tuple[Link, ...]:
    return link(from_site="local"), link(from_site=STORE_SITE, to_site="local")


def read_plan(store: ObjectStore, number: int) -> Plan:
    return decode_record(bytes(store.get(keys.plan(number))), Plan, "plan")


class TestGoingOn:
    def test_as_before(self, store: ObjectStore) -> None:
        """The layout, the job file and the rule for checkpoints are those of the run; its losses are not told again."""
        write_checkpoint(store, 12, is_complete=False)
        store.put(keys.failure("r0s1"), b"last words of another time")
        store.put(f"{keys.COMM}/7/000000/letter", b"")
        platform, events = ScriptedPlatform(), list[Event]()
        result = zooid.resume(store.url, on_event=events.append, platform=platform)
        assert result.losses == tuple(float(step) for step in range(8, NUM_STEPS))
        assert result.checkpoint == f"{store.url}/checkpoints/{NUM_STEPS:08d}"
        assert [(spec.task, spec.member) for spec in platform.specs] == [
            ("check", "checker"),
            ("train", "r0s0"),
            ("train", "r0s1"),
        ]
        for spec in platform.specs:
            assert (spec.run, spec.roster, Path(spec.job_file).name) == ("7", 1, "job.py")
            assert spec.checkpoints == CheckpointRule(every_steps=4, keep=3)
        roster = decode_record(bytes(store.get(keys.roster(1))), Roster, "roster")
        assert (roster.number, roster.resume_step, roster.num_stages) == (1, 8, 2)
        assert read_plan(store, 1).layout == "1x2"
        started = next(event for event in events if isinstance(event, RunStarted))
        assert (started.first_step, started.num_steps) == (8, NUM_STEPS)
        assert started.predicted_run_s == pytest.approx(2.0 + 12.0)
        for folder in (keys.COMM, keys.FAILURES, keys.LEASES, keys.checkpoint(12)):
            assert store.list(folder) == []

    def test_in_the_layout_of_a_plan(self, store: ObjectStore) -> None:
        platform = ScriptedPlatform()
        zooid.resume(store.url, plan=a_plan(3, 1), platform=platform)
        assert [spec.member for spec in platform.specs[1:]] == ["r0s0", "r1s0", "r2s0"]
        assert (read_plan(store, 0).layout, read_plan(store, 1).layout) == ("1x2", "3x1")

    def test_in_a_new_layout_from_the_run_s_profile(self, store: ObjectStore) -> None:
        """The grain stays, although another one would be faster; what is predicted is of the whole run."""
        layers = [layer(0.01, sizes=(1, 4, 8)) for _ in range(4)]
        measured = a_profile(layers, local_links(), num_samples=40, epochs=4)
        store.put(keys.PROFILE, encode_record(measured))
        platform = ScriptedPlatform()
        result = zooid.resume(store.url, limits=Limits(num_replicas=1, num_stages=4), platform=platform)
        assert [spec.member for spec in platform.specs[1:]] == ["r0s0", "r0s1", "r0s2", "r0s3"]
        assert (result.plan.grain_size, result.plan.batch_size) == (SAMPLES.grain_size, SAMPLES.batch_size)
        prediction = result.plan.prediction
        assert prediction.num_steps == NUM_STEPS
        training_s = prediction.startup_s + NUM_STEPS * prediction.step_s
        assert training_s < prediction.run_s < training_s + 0.5, "and the end of four members"

    def test_not_with_more_replicas_than_a_step_has_grains(self, store: ObjectStore) -> None:
        store.put(keys.PROFILE, encode_record(a_profile([layer(0.01)], local_links())))
        with pytest.raises(
            PlanError, match=r"a step of this run has 4 grain\(s\) of 2 samples, which is fixed for a run"
        ):
            zooid.resume(store.url, limits=Limits(num_replicas=5, max_members=5), platform=ScriptedPlatform())
        assert keys.plan(1) not in store.list("")

    def test_again_and_again(self, store: ObjectStore) -> None:
        """Each time under the next number; a number whose roster was never written is not used again."""
        zooid.resume(store.url, plan=a_plan(2, 2), platform=ScriptedPlatform())
        store.put(keys.claim(2), encode_record(RunClaim(run="7", nonce="of one that was killed at once")))
        elsewhere = Path(open_store(store.url).url.removeprefix("file://")).parent / "moved.py"
        elsewhere.write_text("job = None\n")
        platform = ScriptedPlatform()
        zooid.resume(store.url, job_file=elsewhere, platform=platform)
        assert {spec.roster for spec in platform.specs} == {3}
        assert {spec.job_file for spec in platform.specs} == {str(elsewhere)}
        assert read_plan(store, 3).layout == "2x2"

    def test_what_the_user_says_about_checkpoints_holds(self, store: ObjectStore) -> None:
        platform = ScriptedPlatform()
        zooid.resume(store.url, checkpoints=CheckpointRule(every_s=5.0), platform=platform)
        assert {spec.checkpoints for spec in platform.specs} == {CheckpointRule(every_s=5.0)}

    def test_rates_in_the_plan_decide_how_often_checkpoints_are_written(self, store: ObjectStore) -> None:
        """Two stages without replicas: each loss is a rollback, and there is one in an hour for each of them."""
        plan = a_plan()
        rated = structs.replace(plan, offers=(structs.replace(plan.offers[0], interruptions_per_hour=1.0),))
        store.put(keys.plan(0), encode_record(rated))
        platform, events = ScriptedPlatform(), list[Event]()
        zooid.resume(store.url, checkpoints=DEFAULT_RULE, on_event=events.append, platform=platform)
        expected = structs.replace(DEFAULT_RULE, between_rollbacks_s=1800.0)
        assert {spec.checkpoints for spec in platform.specs} == {expected}
        assert read_plan(store, 1).offers[0].interruptions_per_hour == 1.0
        started = next(event for event in events if isinstance(event, RunStarted))
        assert started.checkpoints == (
            "every 1m30s until a checkpoint's pause is measured, because a rollback is expected every 30m"
        )


class TestRefused:
    def refuse(self, store: ObjectStore, error: type[Exception], message: str, **arguments: Any) -> None:
        before = {key: bytes(store.get(key)) for key in store.list("") if not key.startswith(keys.EVENTS)}
        platform = ScriptedPlatform()
        with pytest.raises(error, match=message):
            zooid.resume(store.url, platform=platform, **arguments)
        assert platform.specs == []
        after = {key: bytes(store.get(key)) for key in store.list("") if not key.startswith(keys.EVENTS)}
        assert after == before

    def test_a_folder_without_a_run(self, tmp_path: Path) -> None:
        self.refuse(open_store(tmp_path.as_uri()), InputError, "holds no run; give the folder that `zooid train`")

    def test_a_run_that_never_began(self, tmp_path: Path) -> None:
        store = write_run(tmp_path, steps=(0,))
        store.delete([keys.checkpoint_manifest(0)])
        self.refuse(store, InputError, "has no complete checkpoint, not even of its initial weights")

    def test_a_run_that_is_complete(self, tmp_path: Path) -> None:
        store = write_run(tmp_path, steps=(8, NUM_STEPS))
        self.refuse(store, InputError, "is complete: its checkpoint has all 20 steps; zooid.load_checkpoint")
        assert resumable_step(store.url) is None

    def test_a_missing_shard(self, store: ObjectStore) -> None:
        store.delete([keys.shard(8, "model", 0, 1, 0)])
        self.refuse(
            store, CheckpointError, "lacks checkpoints/00000008/model-00001-of-00001.safetensors, which its manifest"
        )

    def test_a_manifest_that_was_cut_short(self, store: ObjectStore) -> None:
        store.put(keys.checkpoint_manifest(8), bytes(store.get(keys.checkpoint_manifest(8)))[:-9])
        self.refuse(store, InputError, "manifest.json is not a zooid checkpoint file .* was it cut short")

    def test_a_job_file_that_is_gone(self, store: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "job.py").unlink()
        self.refuse(store, InputError, r"no longer exists at .*job.py; give its path with --job")
        self.refuse(store, JobError, "there is no job file", job_file=tmp_path / "other.py")

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"grain_size": 4}, "a grain size of 4, but the run in .* has 2, which is fixed for a run; plan with 2"),
            ({"batch_size": 16}, "a batch size of 16, but the run in .* has 8"),
            ({"model_fingerprint": "g"}, "made for another model than that of the run"),
        ],
    )
    def test_a_plan_that_would_change_the_steps(
        self, store: ObjectStore, changed: dict[str, Any], message: str
    ) -> None:
        self.refuse(store, PlanError, message, plan=a_plan(**changed))

    @pytest.mark.parametrize(
        "settled",
        [{"on": "local"}, {"goal": "fastest"}, {"links": Links(zooid_version="0", date="2025-01-01", links=())}],
        ids=["on", "goal", "links"],
    )
    def test_a_plan_with_what_it_settles(self, store: ObjectStore, settled: dict[str, Any]) -> None:
        message = "a layout, a goal, links or `on`, .* give them when planning"
        self.refuse(store, InputError, message, plan=a_plan(), **settled)

    def test_a_job_that_has_changed_leaves_the_run_as_it_was(self, store: ObjectStore, tmp_path: Path) -> None:
        """The member that checks refuses it, before anybody trains; the next try finds the same run and job."""
        other = tmp_path / "other.py"
        other.write_text("job = None\n")
        before = [key for key in store.list("") if not key.startswith(keys.EVENTS)]
        platform = ScriptedPlatform(refuses="its batch size was 8, and is 9")
        with pytest.raises(JobError, match="its batch size was 8, and is 9"):
            zooid.resume(store.url, job_file=other, platform=platform)
        assert [spec.task for spec in platform.specs] == ["check"]
        after = [key for key in store.list("") if not key.startswith(keys.EVENTS)]
        assert after == sorted([*before, keys.claim(1)]), "a claim's number is never used again"
        platform = ScriptedPlatform()
        zooid.resume(store.url, platform=platform)
        assert {(spec.roster, Path(spec.job_file).name) for spec in platform.specs} == {(2, "job.py")}


def lease_of(process: ProcessMark) -> bytes:
    return encode_record(lease.LeaseHeartbeat(holder="1", process=process, beat=7))


def killed_process() -> ProcessMark:
    """The mark of a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        mark = structs.replace(own_mark(), pid=process.pid, started=started)
        assert is_alive(mark)
    assert is_alive(mark) is False
    return mark


ELSEWHERE = ProcessMark(machine="another machine", pid=1, started="1")


class TestOneAtATime:
    def test_while_a_coordinator_lives_nobody_else_goes_on(self, store: ObjectStore) -> None:
        caught: list[BaseException] = []

        def try_too(spec: Any) -> None:
            if spec.task == "train":
                for attempt in (lambda: zooid.resume(store.url), lambda: zooid.clean(store.url)):
                    with pytest.raises(InputError, match="another coordinator supervises the run in") as error:
                        attempt()
                    caught.append(error.value)

        zooid.resume(store.url, platform=ScriptedPlatform(on_launch=try_too))
        assert len(caught) == 4

    def test_one_on_another_machine_is_heard_before_anybody_goes_on(self, store: ObjectStore) -> None:
        store.put(keys.lease(0), lease_of(ELSEWHERE))
        beating = threading.Timer(0.1, lambda: store.put(keys.lease(0), lease_of(ELSEWHERE) + b"\n"))
        beating.start()
        with pytest.raises(InputError, match="another coordinator supervises the run in"):
            zooid.resume(store.url, platform=ScriptedPlatform())
        beating.join()

    @pytest.mark.parametrize("data", [lease_of(ELSEWHERE), b"a lease of another version"])
    def test_one_that_is_not_heard_is_replaced(self, store: ObjectStore, data: bytes) -> None:
        store.put(keys.lease(0), data)
        store.put(f"{keys.COMM}/7/000000/letter", b"of a member that is dead")
        began_s = time.monotonic()
        zooid.resume(store.url, platform=ScriptedPlatform())
        assert time.monotonic() - began_s >= lease.SILENCE_S
        assert store.list(keys.LEASES) == []

    def test_one_that_was_killed_on_this_machine_is_replaced_at_once(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "SILENCE_S", 3600.0)
        store.put(keys.lease(0), lease_of(killed_process()))
        zooid.resume(store.url, platform=ScriptedPlatform())
        assert store.list(keys.LEASES) == []

    def test_one_of_this_process_that_could_not_end_its_lease_is_replaced_at_once(self, store: ObjectStore) -> None:
        store.put(keys.lease(0), lease_of(own_mark()))
        zooid.resume(store.url, platform=ScriptedPlatform())
        assert store.list(keys.LEASES) == []

    def test_silence_counts_only_while_the_store_answers(self, store: ObjectStore) -> None:
        """One look that took as long as the whole silence does not make a living coordinator a dead one."""
        store.put(keys.lease(0), lease_of(ELSEWHERE))
        asked: list[float] = []

        class Stalling:
            url = store.url

            def get(self, key: str) -> memoryview:
                asked.append(time.monotonic())
                if len(asked) == 2:
                    time.sleep(1.5 * lease.SILENCE_S)
                if len(asked) == 4:
                    store.put(key, lease_of(ELSEWHERE) + b"\n")
                return store.get(key)

        stalling: Any = Stalling()
        with pytest.raises(InputError, match="another coordinator supervises the run"):
            lease.reject_live_coordinator(stalling, 0)
        assert len(asked) == 4

    def test_of_two_who_come_at_once_the_first_wins(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def other_comes_first(objects: ObjectStore, number: int) -> bool:
            objects.create(keys.claim(1), encode_record(RunClaim(run="7", nonce="of the other")))
            return False

        monkeypatch.setattr("zooid.coordinator.runs.resumed_run.reject_live_coordinator", other_comes_first)
        platform = ScriptedPlatform()
        with pytest.raises(InputError, match="another coordinator has just taken over the run"):
            zooid.resume(store.url, platform=platform)
        assert platform.specs == []
        assert keys.plan(1) not in store.list("")
        assert store.list(keys.LEASES) == []


class TestFenced:
    def test_the_checkpoint_is_picked_when_members_that_were_left_behind_have_ended(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They write another checkpoint and prune the one that was the last, until they see the claim."""
        store.put(keys.lease(0), lease_of(killed_process()))

        def last_deeds(run: Run) -> None:
            assert keys.claim(1) in store.list(""), "members cannot see what is not there yet"
            write_checkpoint(store, 12)
            clear(store, keys.checkpoint(8))

        monkeypatch.setattr(Run, "wait_for_earlier_members", last_deeds)
        zooid.resume(store.url, platform=ScriptedPlatform())
        assert decode_record(bytes(store.get(keys.roster(1))), Roster, "roster").resume_step == 12

    def test_a_run_that_members_have_finished_meanwhile_is_complete(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(keys.lease(0), lease_of(killed_process()))
        monkeypatch.setattr(Run, "wait_for_earlier_members", lambda run: write_checkpoint(store, NUM_STEPS))
        platform = ScriptedPlatform()
        with pytest.raises(InputError, match="is complete: its checkpoint has all 20 steps"):
            zooid.resume(store.url, platform=platform)
        assert platform.specs == []

    def test_what_a_killed_coordinator_of_a_finished_run_has_left_is_removed(self, store: ObjectStore) -> None:
        """Its members have finished the run by themselves; nobody has to go on with it, but somebody has to tidy up."""
        write_checkpoint(store, NUM_STEPS)
        store.put(keys.lease(0), lease_of(killed_process()))
        store.put(f"{keys.comm_of('7', 0)}/letter", b"")
        with pytest.raises(InputError, match="is complete: its checkpoint has all 20 steps"):
            zooid.resume(store.url, platform=ScriptedPlatform())
        assert store.list(keys.LEASES) == store.list(keys.COMM) == []

    def test_after_a_proper_end_nobody_is_waited_for(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(Run, "wait_for_earlier_members")
        zooid.resume(store.url, platform=ScriptedPlatform())

    def test_a_coordinator_that_was_replaced_deletes_nothing_and_ends_nobody(self, store: ObjectStore) -> None:
        """What it has started ends by itself. Its successor removes what it leaves."""
        successors = [keys.claim(2), keys.lease(2), f"{keys.comm_of('7', 2)}/letter", keys.plan(2), "plan.json#1"]

        def replace(spec: Any) -> None:
            if spec.task == "train":
                store.put(f"{keys.comm_of('7', 1)}/letter", b"")
                for key in successors[:-1]:
                    store.put(key, b"")
                Path(f"{store.url.removeprefix('file://')}/plan.json#1").write_bytes(b"being written")

        platform = EndlessPlatform(on_launch=replace)
        with pytest.raises(
            Superseded, match=r"another coordinator has taken over .* claims/000002.json replaces claim 1"
        ):
            zooid.resume(store.url, platform=platform)
        assert {"000001.r0s0", "000001.r0s1"} <= platform.ends.keys(), "they were not ended"
        listed = store.list("")
        assert all(key in listed for key in successors[:-1])
        assert Path(f"{store.url.removeprefix('file://')}/plan.json#1").exists()
        assert keys.lease(1) in listed
        assert f"{keys.comm_of('7', 1)}/letter" in listed

    def test_what_a_killed_coordinator_began_after_its_claim_is_fenced_too(self, store: ObjectStore) -> None:
        """A claim without a roster counts: the next number is above it, and its lease is the one that is looked at."""
        store.put(keys.claim(1), encode_record(RunClaim(run="7", nonce="killed at once")))
        store.put(keys.lease(1), lease_of(killed_process()))
        events = list[Event]()
        zooid.resume(store.url, platform=ScriptedPlatform(), on_event=events.append)
        assert keys.roster(2) in store.list("")
        phases = [event.phase for event in events if isinstance(event, PhaseStarted)]
        assert phases[0] == "waiting until members that were left behind have ended"

    def test_events_of_members_that_were_left_behind_are_not_told_again(self, store: ObjectStore) -> None:
        def tell_of_old(spec: Any) -> None:
            with EventWriter(store, "r0s0", 0) as events:
                events.write(committed(8))

        result = zooid.resume(store.url, platform=ScriptedPlatform(on_launch=tell_of_old))
        assert result.losses == tuple(float(step) for step in range(8, NUM_STEPS))
        told = [event.step for event in read_history(store) if isinstance(event, StepCommitted)]
        assert told == list(range(NUM_STEPS)), "every step once"


class OrphanedPlatform(ScriptedPlatform):
    """Members that another process has started run until they are looked at a few times, and are then gone."""

    num_looks = 3

    def watch(self, handle: MemberHandle, title: str) -> bool:
        return True

    def members(self, run: str) -> Mapping[str, Exit | None]:
        self.num_looks -= 1
        orphans = dict.fromkeys(("000000.r0s0", "000000.r0s1")) if self.num_looks >= 0 else {}
        return {**orphans, **self.ends}


class TestAdoption:
    """Members that are at work when their coordinator has died go on, unless something else is asked for."""

    @pytest.fixture(autouse=True)
    def killed(self, store: ObjectStore) -> None:
        told = {keys.events_of("r0s0"): 1}
        sign = lease.LeaseHeartbeat(holder="1", process=killed_process(), beat=7, told=told)
        store.put(keys.lease(0), encode_record(sign))
        for member in ("r0s0", "r0s1"):
            launched_at_s = time.time() - 5.0
            handle = MemberHandle(
                run="7", member=member, platform="local", offer="local", launched_at_s=launched_at_s, place={}
            )
            store.put(keys.handle(member, 0), encode_record(handle))

    def finish(self, store: ObjectStore, *members: str) -> None:
        write_checkpoint(store, NUM_STEPS)
        with EventWriter(store, "r0s0", 0) as events:
            for step in range(8, NUM_STEPS):
                events.write(committed(step))
        for member in members:
            with EventWriter(store, member, 0) as events:
                events.write(MemberTrained(at_s=time.time(), member=member, peak_bytes=1))
            store.put(keys.end(member, 0), encode_record(MemberEnd(member=member, exit=Exit(0))))

    def test_what_the_dead_coordinator_has_told_is_not_told_again(self, store: ObjectStore) -> None:
        self.finish(store, "r0s0", "r0s1")
        platform, seen = OrphanedPlatform(), list[Event]()
        result = zooid.resume(store.url, platform=platform, on_event=seen.append)
        assert platform.specs == []
        assert result.losses == tuple(float(step) for step in range(8, NUM_STEPS))
        assert result.checkpoint == f"{store.url}/checkpoints/{NUM_STEPS:08d}"
        [adopted] = [event for event in seen if isinstance(event, MembersAdopted)]
        assert (adopted.members, adopted.step) == (("r0s0", "r0s1"), NUM_STEPS)
        for folder in (keys.LEASES, keys.HANDLES, keys.COMM):
            assert store.list(folder) == []
        assert not Fence(store, 0).is_superseded(), "members were never told to end"

    def test_a_member_that_is_gone_without_a_word_has_failed(self, store: ObjectStore) -> None:
        with pytest.raises(MemberFailed, match=r"member r0s[01] is gone; how it ended is not known"):
            zooid.resume(store.url, platform=OrphanedPlatform())

    @pytest.mark.parametrize(
        "given", [{"plan": a_plan()}, {"checkpoints": CheckpointRule(every_s=5.0)}], ids=["plan", "checkpoints"]
    )
    def test_whoever_asks_for_something_else_gets_new_members(self, store: ObjectStore, given: dict[str, Any]) -> None:
        platform = OrphanedPlatform()
        zooid.resume(store.url, platform=platform, **given)
        assert [spec.member for spec in platform.specs] == ["checker", "r0s0", "r0s1"]
        assert Fence(store, 0).is_superseded()

    def test_a_member_that_cannot_be_seen_is_judged_by_what_it_tells(self, store: ObjectStore) -> None:
        heard_s, trained = {"r0s0": time.monotonic()} | dict.fromkeys(("r0s1", "r0s2", "r0s3"), -math.inf), {"r0s2"}
        store.put(keys.end("r0s3", 0), encode_record(MemberEnd(member="r0s3", exit=Exit(-9))))
        members = HeardMembers(
            ScriptedPlatform(),
            store,
            0,
            heard_s.__getitem__,
            trained.__contains__,
            60.0,
            heard_s.__getitem__,
            unseen=set(heard_s),
        )
        ends = {title.partition(".")[2]: end for title, end in members.members("7").items()}
        assert ends == {"r0s0": None, "r0s1": Exit(None), "r0s2": Exit(0), "r0s3": Exit(-9)}

    def test_too_few_members_are_not_adopted(self, store: ObjectStore) -> None:
        store.delete([keys.handle("r0s1", 0)])
        platform = OrphanedPlatform()
        zooid.resume(store.url, platform=platform)
        assert platform.specs != []

    def test_members_that_were_told_to_end_are_not_adopted(self, store: ObjectStore) -> None:
        """Somebody wanted to start anew, and was killed before there was a roster."""
        store.put(keys.claim(1), encode_record(RunClaim(run="7", nonce="killed at once")))
        store.put(keys.lease(1), lease_of(killed_process()))
        platform = OrphanedPlatform()
        zooid.resume(store.url, platform=platform)
        assert {spec.roster for spec in platform.specs} == {2}


class TestCleaning:
    """What a killed coordinator has left is removed without harm to whoever is still at work."""

    @pytest.fixture(autouse=True)
    def killed(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cleanup, "GRACE_S", 0.1)
        monkeypatch.setattr(cleanup, "_BUSY_POLL_S", 0.2)
        store.put(keys.lease(0), lease_of(killed_process()))
        store.put(f"{keys.comm_of('7', 0)}/letter", b"")
        write_checkpoint(store, 12, is_complete=False)

    def test_everything_that_was_left_goes_after_members_were_fenced_off(self, store: ObjectStore) -> None:
        zooid.clean(store.url)
        assert store.list(keys.COMM) == store.list(keys.LEASES) == store.list(keys.checkpoint(12)) == []
        assert Fence(store, 0).is_superseded(), "a silent member that wakes up must end"
        zooid.resume(store.url, platform=ScriptedPlatform())

    @pytest.mark.parametrize("sign", ["comm/7/000000/another", "events/000000/r0s0/00000099.jsonl"])
    def test_members_that_go_on_by_themselves_are_left_alone(self, store: ObjectStore, sign: str) -> None:
        """Over TCP, or alone, they exchange no objects; but they tell of their steps."""
        working = threading.Timer(0.05, lambda: store.put(sign, b""))
        working.start()
        with pytest.raises(InputError, match="members are writing messages or events"):
            zooid.clean(store.url)
        working.join()
        assert not Fence(store, 0).is_superseded()
        assert keys.lease(0) in store.list("")


class EndlessPlatform(ScriptedPlatform):
    """Members that train until they are ended."""

    def begin(self, launch: Launch) -> Exit | None:
        end = super().begin(launch)
        return end if launch.member == "checker" else None


class TestGivenPlans:
    """For `train`, before anything is started."""

    @pytest.fixture
    def job(self, tmp_path: Path) -> Iterator[Path]:
        file = tmp_path / "job.py"
        file.write_text("job = None\n")
        yield file
        assert not (tmp_path / "new").exists(), "nothing was begun"

    def test_a_stage_that_cannot_fit(self, job: Path) -> None:
        plan = a_plan()
        large = structs.replace(plan.stages[1], memory_bytes=plan.offers[0].memory_bytes + 5 * 10**9)
        with pytest.raises(PlanError) as caught:
            self.train(job, structs.replace(plan, stages=(plan.stages[0], large)))
        assert str(caught.value).startswith("stage 1 of the plan (layers 1 to 1) needs ")
        assert ": 5 GB are missing; plan with more stages, a smaller job.grain_size or a larger offer" in str(
            caught.value
        )

    def test_members_that_cannot_fit_together(self, job: Path) -> None:
        plan = a_plan()
        half = plan.offers[0].memory_bytes // 2 + 10**9
        stages = tuple(structs.replace(stage, memory_bytes=half) for stage in plan.stages)
        with pytest.raises(PlanError, match=r"the plan's 2 members need .* together, .*: 2 GB are missing; plan with"):
            self.train(job, structs.replace(plan, stages=stages))

    def train(self, job: Path, plan: Plan) -> None:
        zooid.train(job, store=(job.parent / "new").as_uri(), plan=plan, platform=ScriptedPlatform())


class TestOptions:
    @pytest.mark.parametrize(
        ("every", "keep", "rule"),
        [
            (None, None, None),
            ("10m", None, CheckpointRule(every_s=600.0)),
            ("200steps", 5, CheckpointRule(every_steps=200, keep=5)),
            ("1 step", None, CheckpointRule(every_steps=1)),
            (None, 1, CheckpointRule(every_s=600.0, is_automatic=True, keep=1)),
            ("auto", None, CheckpointRule(every_s=600.0, is_automatic=True)),
        ],
    )
    def test_texts_become_a_rule(self, every: str | None, keep: int | None, rule: CheckpointRule | None) -> None:
        assert checkpoints_from(every, keep) == rule

    @pytest.mark.parametrize(
        ("every", "keep"), [("200", None), ("often", None), ("0steps", None), ("0s", 1), ("1m", 0)]
    )
    def test_others_are_refused(self, every: str, keep: int | None) -> None:
        with pytest.raises(InputError):
            checkpoints_from(every, keep)


def test_a_run_tells_from_where_it_can_go_on(store: ObjectStore, tmp_path: Path) -> None:
    assert resumable_step(store.url) == 8
    assert resumable_step((tmp_path / "nothing").as_uri()) is None
