"""Records and keys that nobody should have written: refused with a project error, or ignored and logged once."""

import logging
from typing import Any

import pytest

from tests.unit.test_records import a_roster
from zooid.core import keys
from zooid.core.checkpoint import Evaluation, SampleFacts
from zooid.core.errors import InputError, RecordError
from zooid.core.events import Event, StepCommitted, decode_events, encode_events
from zooid.core.records import decode_record, encode_record
from zooid.core.roster import Roster, RosterMember
from zooid.core.text import printable, quoted, without_credentials
from zooid.store import EventReader, EventWriter, open_store
from zooid.store.claims import last_claim

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
        assert sum("are left out" in record.getMessage() for record in caplog.records) == 1

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
