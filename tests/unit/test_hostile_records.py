"""Records and keys that nobody should have written: refused with a project error, or ignored and logged once."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from tests.fuzz.record_samples import a_manifest
from tests.unit.test_records import a_plan, a_roster
from zooid.comm.c10d_store import ObjectRendezvous
from zooid.comm.calls.sparse import check_counts, check_indices
from zooid.comm.rendezvous import meet
from zooid.coordinator.job_files.job_objects import saved_source
from zooid.coordinator.runs.crew import _input_error
from zooid.core.abort import Abort
from zooid.core.errors import CheckpointError, CommError, InputError, JobError, RecordError
from zooid.core.jobs.job_imports import parsed_file
from zooid.core.plans.plan import Plan
from zooid.core.records import decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import Evaluation, SampleFacts
from zooid.core.runs.events import Event, StepCommitted, decode_events, encode_events
from zooid.core.runs.roster import Roster, RosterMember
from zooid.core.runs.spec import RunClaim
from zooid.core.text import printable, quoted, without_credentials
from zooid.core.units import format_duration
from zooid.profiler.probes.probe_barrier import ProbeBarrier
from zooid.profiler.probes.probe_listener import Address
from zooid.profiler.probes.probe_member import _check_complete
from zooid.profiler.probes.probe_rounds import FlowIndex, ProbeFlow, ProbeRound
from zooid.schedule.samples import SamplePlan
from zooid.store import EventReader, EventWriter, open_store, read_history
from zooid.store.claims import last_claim
from zooid.worker.checkpoints.contents import load_checkpoint
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors

DEEP = b"[" * 100_000


class TestRecords:
    @pytest.mark.timeout(10)
    @pytest.mark.parametrize("seat", [(10**9, 10**9), (0, 10**18), (-1, 0), (10**400, 3)])
    def test_a_seat_far_away_is_refused_at_once(self, seat: tuple[int, int]) -> None:
        with pytest.raises(RecordError, match="must fill every replica and stage exactly once"):
            a_roster(members=(RosterMember(name="m", replica=seat[0], stage=seat[1]),), shares=(1,))

    def test_json_that_is_too_deep_is_refused(self) -> None:
        whole = encode_record(a_roster())
        with pytest.raises(RecordError, match="is not a zooid roster file"):
            decode_record(whole.replace(b'"run-7"', DEEP), Roster, "roster.json")
        with pytest.raises(RecordError, match="line 1 is not an event"):
            decode_events(b'{"event": "metered", "at_s": ' + DEEP, "events")

    def test_a_message_repeats_neither_everything_nor_what_steers_a_terminal(self) -> None:
        hostile = encode_record(a_roster()).replace(b'"roster"', b'"\\u001b[2J' + b"x" * 10**5 + b'"')
        with pytest.raises(RecordError) as refused:
            decode_record(hostile, Roster, "roster.json")
        assert "\x1b" not in str(refused.value)
        assert len(str(refused.value)) < 1000

    @pytest.mark.parametrize("field", ["num_samples", "batch_size", "grain_size", "epochs"])
    def test_samples_that_would_divide_by_zero_are_refused(self, field: str) -> None:
        facts: dict[str, Any] = {"num_samples": 4, "batch_size": 2, "grain_size": 1, "epochs": 1, "seed": 0}
        with pytest.raises(RecordError, match=f"`{field}` is 0"):
            SampleFacts(**facts | {field: 0})

    def test_a_number_in_words_must_be_one_that_json_lacks(self) -> None:
        assert Evaluation(step=0, numbers={"loss": "inf"}).value("loss") == float("inf")
        with pytest.raises(RecordError, match="'soon' for 'loss'"):
            Evaluation(step=0, numbers={"loss": "soon"})


class TestStrays:
    STRAYS = (
        "notes.txt",
        "1.json",
        "0000012.json",
        "²²²²²².json",
        "-00001.json",
        "000001.json.bak",
        f"{10**30}.json",
        "00000001.jsonl",
    )

    def test_claims_and_rosters_are_found_among_strays(self) -> None:
        listed = [f"claims/{name}" for name in (*self.STRAYS, "000002.json", "000010.json", "1000000.json")]
        assert keys.numbers(listed) == [2, 10, 1_000_000]

    def test_a_stray_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                keys.numbers(["claims/only-in-this-test.txt"])
        assert [record.getMessage() for record in caplog.records] == [
            "claims/only-in-this-test.txt is ignored: nothing of a run has this name"
        ]

    def test_checkpoints_and_timelines_are_found_among_strays(self) -> None:
        listed = [
            f"checkpoints/{name}"
            for name in (
                "7/manifest.json",
                "²/manifest.json",
                "notes/x",
                "constants.safetensors",
                "00000007/manifest.json",
            )
        ]
        assert keys.checkpoint_steps(listed) == {7: True}
        assert keys.recorded_steps(["00000003", "3", "²", "latest"]) == [3]

    def test_a_history_is_read_beside_stray_folders(self) -> None:
        store = open_store("memory://stray-histories")
        told: list[Event] = [StepCommitted(at_s=1.0, step=0, epoch=0, loss=1.0, num_samples=1, step_s=0.1)]
        store.put(f"{keys.events_of('r0s0')}/00000000.jsonl", encode_events(told))
        for stray in ("0", "١", "9" * 5000, "notes"):
            store.put(f"events/{stray}/r0s0/00000000.jsonl", encode_events(told))
        assert read_history(store) == told

    def test_a_run_is_found_beside_a_stray_claim(self) -> None:
        store = open_store("memory://stray-claims")
        store.put("claims/notes.txt", b"mine")
        with pytest.raises(InputError, match="holds no run"):
            last_claim(store)

    def test_events_are_read_beside_strays_and_behind_a_damaged_object(self, caplog: pytest.LogCaptureFixture) -> None:
        store = open_store("memory://stray-events")
        told: list[Event] = [
            StepCommitted(at_s=1.0, step=step, epoch=0, loss=1.0, num_samples=1, step_s=0.1) for step in range(2)
        ]
        for stray in ("notes.txt", "r0s0/notes.txt", "r0s0/²²²²²²²².jsonl", "empty/x"):
            store.put(f"events/000000/{stray}", b"\x00")
        store.put("events/000000/r0s0/00000000.jsonl", b"\xff not an event")
        store.put("events/000000/r0s0/00000001.jsonl", encode_events(told[:1]))
        with EventWriter(store, "r0s0") as writer:
            writer.write(told[1])
        assert "events/000000/r0s0/00000002.jsonl" in store.list("events")
        assert EventReader(store).read_new() == told
        assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1

    def test_the_url_of_a_spec_must_be_one(self) -> None:
        with pytest.raises(InputError, match="must contain /specs/"):
            keys.split_spec_url("s3://bucket/run-7/spec.json")


class TestTexts:
    @pytest.mark.parametrize("hidden", ["\x1b", "\x07", "\r", "\x7f", "\x9b", "\u202e", "\u2066", "\ud800", "\x00"])
    def test_what_steers_a_terminal_is_spelled_out(self, hidden: str) -> None:
        assert hidden not in printable(f"a{hidden}b")
        printable(f"a{hidden}b").encode()

    def test_other_texts_stay_as_they_are(self) -> None:
        text = "loss 1.5\n\tfür Ünïcödé, 損失 → 🙂"
        assert printable(text) == quoted(text) == text

    def test_passwords_are_left_out(self) -> None:
        text = "get of s3://me:secret@bucket/run failed: http://k:p@ss@localhost:9000/x"
        assert without_credentials(text) == "get of s3://…@bucket/run failed: http://…@localhost:9000/x"
        assert without_credentials("s3://bucket/a@b") == "s3://bucket/a@b"


class TestMeetings:
    """What ranks and members find where they meet, beside what they have said to each other."""

    def test_a_damaged_lobby_harms_nobody(self) -> None:
        store = open_store("memory://damaged-lobby")
        for number, data in enumerate((b"", b"\xff", DEEP, b"[]", b'{"latency_s": "soon"}', b'{"latency_s": -1}')):
            for name in ("call", "go", "refused", "here-1"):
                store.put(keys.lobby(f"stray-{number}", name), data)
        with ThreadPoolExecutor(2) as pool:
            sessions = list(pool.map(lambda rank: meet(store, rank, 2, timeout_s=20.0, abort=Abort()), range(2)))
        assert sessions[0] == sessions[1]

    @pytest.mark.parametrize("damage", [b"", b"short", b"0123456789abcdef", b"0123456789abcdefsoon", b"0" * 5000])
    def test_a_counter_that_is_no_number_is_refused(self, damage: bytes) -> None:
        store = open_store("memory://damaged-counter")
        store.put("meeting/kv/n/00000000", damage)
        with pytest.raises(CommError, match="must be a number"):
            ObjectRendezvous(store, "meeting", timeout_s=1.0).add("n", 1)

    def test_a_counter_is_exact_beside_a_stray(self) -> None:
        store = open_store("memory://stray-counter")
        store.put("meeting/kv/n/notes.txt", b"mine")
        meeting = ObjectRendezvous(store, "meeting", timeout_s=1.0)
        assert [meeting.add("n", 2), meeting.add("n", 3)] == [2, 5]

    @pytest.mark.parametrize("damage", [b"", b"[", b"{}", b"[[0, 0]]", b'[[0, 0, ["fast"]]]', DEEP])
    def test_a_member_that_says_something_else_is_named(self, damage: bytes) -> None:
        store = open_store("memory://damaged-barrier")
        store.put("probe/meeting-000000/000001", damage)
        barrier = ProbeBarrier(store, "probe", ("a", "b"), 0, timeout_s=1.0, abort=Abort())
        with pytest.raises(RecordError, match="of b is not a member's message at the end"):
            barrier.meet("the end", [], list[tuple[int, int, list[float]]])

    @pytest.mark.parametrize("values", [[], [0.0], [-1.0], [1.0, float("nan")]])
    def test_measurements_with_gaps_are_refused(self, values: list[float]) -> None:
        rounds = [ProbeRound("bandwidth", (ProbeFlow(0, 1),))]
        with pytest.raises(CommError, match="flow 0 of round 0"):
            _check_complete(rounds, {FlowIndex(0, 0): values})

    @pytest.mark.parametrize(("port", "secret"), [(0, "0" * 64), (2**16, "0" * 64), (9, "not hex"), (9, "0" * 63)])
    def test_an_address_that_is_none_is_refused(self, port: int, secret: str) -> None:
        with pytest.raises(RecordError, match=r"`port` is|`secret` must be"):
            Address(hosts=(), port=port, secret=secret, network="")

    def test_sparse_entries_outside_of_their_tensor_are_refused(self) -> None:
        with pytest.raises(CommError, match="rank 1 has 26 entries"):
            check_counts([25, 26], (5, 5))
        with pytest.raises(CommError, match="outside of a sparse tensor"):
            check_indices(torch.tensor([[0, 5], [0, 0]]), (5, 5), 1)
        check_indices(torch.tensor([[0, 4], [0, 4]]), (5, 5), 1)


class TestCheckpoints:
    def test_a_folder_that_is_no_checkpoint_is_refused(self) -> None:
        with pytest.raises(CheckpointError, match="is not the folder of a checkpoint"):
            load_checkpoint("memory://no-run/checkpoints/latest")

    def test_a_name_without_its_tensor_is_refused(self) -> None:
        store = open_store("memory://lost-tensor")
        manifest = structs.replace(a_manifest(), shards=(), optimizer=(), constants=())
        store.put(keys.checkpoint_manifest(8), encode_record(manifest))
        with pytest.raises(CheckpointError, match="lacks \\['a'\\], which other names"):
            load_checkpoint(store.url)

    @pytest.mark.parametrize(
        "header",
        [
            b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
            b'{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}',
            b'{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}',
            b'{"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}}',
            DEEP,
        ],
    )
    def test_a_header_of_no_tensors_is_refused(self, header: bytes) -> None:
        store = open_store("memory://no-tensors")
        manifest = structs.replace(a_manifest(), aliases={})
        store.put(keys.checkpoint_manifest(8), encode_record(manifest))
        store.put(manifest.shards[0].key, len(header).to_bytes(8, "little") + header + b"\0" * 4)
        with pytest.raises(CheckpointError, match=r"was cut short or altered|does not hold the tensors"):
            load_checkpoint(store.url)

    def test_several_numbers_where_one_belongs_are_refused(self) -> None:
        weight = torch.nn.Parameter(torch.zeros(2))
        with pytest.raises(CheckpointError, match="has 2 numbers in step\\(int\\):weight"):
            load_optimizer_tensors(
                torch.optim.SGD([weight], lr=0.1), [("weight", weight)], {"step(int):weight": torch.zeros(2)}
            )


class TestPlansAndJobs:
    @pytest.mark.timeout(10)
    def test_a_plan_of_more_members_than_can_be_listed_is_refused(self) -> None:
        with pytest.raises(RecordError, match="members; it may have at most 65536"):
            a_plan(num_replicas=10**12)

    def test_a_file_that_is_far_too_deep_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text("x = " + "-" * 100_000 + "1")
        with pytest.raises(JobError, match=r"job\.py"):
            parsed_file(tmp_path / "job.py", "job.py")

    def test_a_kept_job_that_is_no_text_is_refused(self) -> None:
        store = open_store("memory://no-job")
        store.put(keys.JOB, b"\xff\xfe")
        with pytest.raises(JobError, match="is not Python"):
            saved_source(store)

    @pytest.mark.parametrize("name", ["MemberFailed", "__name__", "ZooidError", "nothing", ""])
    def test_a_failure_names_only_errors_of_input(self, name: str) -> None:
        assert _input_error(name) is InputError
        assert _input_error("JobError") is JobError


class TestLargeNumbers:
    @pytest.mark.parametrize("number", ["9" * 20, "-" + "9" * 4000, "1" + "0" * 400])
    def test_a_number_of_more_than_64_bits_is_refused(self, number: str) -> None:
        whole = encode_record(a_plan())
        with pytest.raises(RecordError, match="must fit into 64 bits"):
            decode_record(whole.replace(b"100000000", number.encode()), Plan, "plan.json")
        told = b'{"event": "profile_progress", "at_s": 1, "done": %s, "total": 2}'
        for text in (number, f'"{number}"'):
            with pytest.raises(RecordError, match="must fit into 64"):
                decode_events(told % text.encode(), "events")

    def test_many_digits_in_a_text_or_behind_a_point_are_fine(self) -> None:
        digits = "9" * 30
        plan = a_plan(job=f'a "{digits}" \\"{digits}')
        assert decode_record(encode_record(plan), Plan, "plan.json") == plan
        longer = encode_record(plan).replace(b'"step_s": 0.5', f'"step_s": 0.5{"0" * 40}'.encode())
        assert decode_record(longer, Plan, "plan.json") == plan

    @pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan"), 1e308])
    def test_a_duration_without_an_end_is_shown(self, seconds: float) -> None:
        assert format_duration(seconds)


class TestNames:
    @pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", "a\nb", "a\x1b[2J", "a#1"])
    def test_a_name_that_cannot_be_part_of_a_key_is_refused(self, name: str) -> None:
        with pytest.raises(RecordError, match="`name` is"):
            RosterMember(name=name, replica=0, stage=0)
        with pytest.raises(RecordError, match="`run` is"):
            a_roster(run=name)
        with pytest.raises(RecordError, match="`run` is"):
            RunClaim(run=name)

    def test_sizes_and_times_below_zero_are_refused(self) -> None:
        plan = a_plan()
        with pytest.raises(RecordError, match="`memory_bytes` is -1"):
            structs.replace(plan.stages[0], memory_bytes=-1).__post_init__()
        with pytest.raises(RecordError, match="`num_steps` is 0"):
            structs.replace(plan.prediction, num_steps=0).__post_init__()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("is_in_order", [False, True])
def test_samples_before_a_step_are_counted_without_counting_up(is_in_order: bool) -> None:
    samples = SamplePlan(num_samples=10, batch_size=4, grain_size=2, epochs=3, seed=0, is_in_order=is_in_order)
    for step in range(samples.num_steps + 1):
        assert samples.num_samples_before(step) == sum(samples.step_size(before) for before in range(step))
    huge = SamplePlan(num_samples=10**18, batch_size=1, grain_size=1, epochs=1, seed=0)
    assert huge.num_samples_before(10**17) == 10**17
