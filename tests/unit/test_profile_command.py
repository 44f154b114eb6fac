"""`zooid profile` around the measurement: what it reuses, what it refuses, and what it leaves alone."""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.profiles import layer, profile
from zooid import coordinator
from zooid.cli.profile_command import profile as profile_command
from zooid.coordinator.plans.offer_names import resolve_offers
from zooid.core.errors import InputError, MemberFailed
from zooid.core.plans.profile import Profile
from zooid.core.records import decode_record, encode_record

HELD = profile([layer(0.1)], job="job", date="2026-11-02")
NEW = profile([layer(0.2)], job="job", date="2026-11-15")


class Measuring:
    """Stands in for the members that measure: `NEW`, unless what is known still holds."""

    def __init__(self) -> None:
        self.known: list[Profile | None] = []
        """By measurement: of every offer, in their order."""
        self.still_holds = False
        self.fails = False

    def __call__(
        self, job_file: Path, *, on: list[str], known: Mapping[str, Profile], **others: Any
    ) -> dict[str, Profile]:
        names = list(resolve_offers(on))
        self.known += [known.get(name) for name in names]
        if self.fails:
            raise MemberFailed("profiler", "was killed by signal 9")
        return {name: known[name] if name in known and self.still_holds else NEW for name in names}


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measuring:
    made = Measuring()
    monkeypatch.setattr(coordinator, "profiles", made)
    monkeypatch.chdir(tmp_path)
    return made


JOB = Path("somewhere/job.py")
FILE = Path("job.profile.json")
PAGE = Path("job.profile.html")


def written(file: Path = FILE) -> Profile:
    return decode_record(file.read_bytes(), Profile, str(file))


def test_a_first_profile_is_written_with_its_picture(measuring: Measuring, capsys: pytest.CaptureFixture[str]) -> None:
    profile_command(JOB)
    assert measuring.known == [None]
    assert written() == NEW
    assert "profile of job" in PAGE.read_text()
    lines = capsys.readouterr().out.splitlines()
    assert "measured" in lines
    assert lines[-2:] == ["profile: job.profile.json", "picture: job.profile.html"]
    assert sorted(Path().iterdir()) == [PAGE, FILE]


def test_what_still_holds_is_kept(measuring: Measuring, capsys: pytest.CaptureFixture[str]) -> None:
    FILE.write_bytes(encode_record(HELD).replace(b"\n", b"\n\n"))
    before = FILE.read_bytes()
    measuring.still_holds = True
    profile_command(JOB)
    assert measuring.known == [HELD]
    assert FILE.read_bytes() == before
    assert PAGE.exists()
    assert "nothing has changed since 2026-11-02, so the profile is still valid; --again" in capsys.readouterr().out


def test_what_no_longer_holds_is_replaced(measuring: Measuring, capsys: pytest.CaptureFixture[str]) -> None:
    FILE.write_bytes(encode_record(HELD))
    profile_command(JOB)
    assert written() == NEW
    assert (
        "measured again, because the job or the machine has changed since the profile of 2026-11-02"
        in capsys.readouterr().out
    )


def test_again_does_not_look_at_what_is_there(measuring: Measuring) -> None:
    measuring.still_holds = True
    for content in (encode_record(HELD), b'{"record": "prof', b"\xff\xfe"):
        FILE.write_bytes(content)
        profile_command(JOB, again=True)
        assert written() == NEW
    assert measuring.known == [None] * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encode_record(HELD)[:-200], "was it cut short"),
        (b'{"record": "profile", "version": 1000}', "has version 1000; .* update zooid"),
        (encode_record(profile([layer(0.1)], job="other")), "the profile of the job other, not of job"),
        (encode_record(HELD).replace(b'"knee"', b'"elbow"'), "is not a valid profile"),
        (b'{"record": "plan", "version": 1}', "holds a 'plan'"),
        (b"notes of mine", "is not a zooid profile file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_left_alone(
    measuring: Measuring, content: bytes, message: str
) -> None:
    FILE.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        profile_command(JOB)
    assert "--again" in str(refused.value)
    assert measuring.known == []
    assert FILE.read_bytes() == content
    assert list(Path().iterdir()) == [FILE]


def test_a_file_of_an_older_version_is_measured_anew_with_a_notice(
    measuring: Measuring, capsys: pytest.CaptureFixture[str]
) -> None:
    FILE.write_text('{"record": "profile", "version": 1, "job": "job"}')
    profile_command(JOB)
    assert measuring.known == [None]
    assert written() == NEW
    assert "job.profile.json was written by an older zooid: measuring again" in capsys.readouterr().out


def test_a_measurement_that_fails_overwrites_nothing(measuring: Measuring) -> None:
    FILE.write_bytes(encode_record(HELD))
    PAGE.write_text("the page of before")
    measuring.fails = True
    for again in (False, True):
        with pytest.raises(MemberFailed):
            profile_command(JOB, again=again)
    assert written() == HELD
    assert PAGE.read_text() == "the page of before"
    assert sorted(Path().iterdir()) == [PAGE, FILE]


def test_a_picture_that_cannot_be_written_leaves_the_profile_alone(
    measuring: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILE.write_bytes(encode_record(HELD))
    write_text = Path.write_text

    def fail(path: Path, text: str, **others: Any) -> int:
        write_text(path, text[:100], **others)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(InputError, match=r"job\.profile\.html cannot be written: No space left"):
        profile_command(JOB)
    assert written() == HELD
    assert list(Path().iterdir()) == [FILE]


@pytest.mark.parametrize(
    ("out", "picture", "message"),
    [
        ("nowhere/job.json", None, "nowhere/job.json cannot be written"),
        ("job.json", "nowhere/page.html", "nowhere/page.html cannot be written"),
        ("job.json", ".", "cannot be written; give a file"),
        ("same", "./same", "must be three files"),
        ("page.html", None, "must be three files"),
        ("job.json", "./somewhere/../somewhere/job.py", "must be three files"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_measuring(
    measuring: Measuring, out: str, picture: str | None, message: str
) -> None:
    JOB.parent.mkdir()
    JOB.write_text("the job")
    with pytest.raises(InputError, match=message):
        profile_command(JOB, out=Path(out), picture=None if picture is None else Path(picture), again=True)
    assert measuring.known == []
    assert JOB.read_text() == "the job"
    assert list(Path().iterdir()) == [JOB.parent]


def test_files_go_where_they_are_wanted(measuring: Measuring) -> None:
    profile_command(JOB, out=Path("mine.json"))
    profile_command(JOB, out=Path("mine.json"), picture=Path("look.html"))
    assert sorted(path.name for path in Path().iterdir()) == ["look.html", "mine.html", "mine.json"]


def test_json_is_the_profile_and_words_go_to_stderr(measuring: Measuring, capsys: pytest.CaptureFixture[str]) -> None:
    FILE.write_bytes(encode_record(HELD))
    measuring.still_holds = True
    profile_command(JOB, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["date"] == "2026-11-02"
    assert "nothing has changed since 2026-11-02" in err


TWO = ["local", "local:aws.lambda.1024"]
FILES = [Path("job.local.profile.json"), Path("job.aws.lambda.1024.profile.json")]


class TestSeveralOffers:
    def test_each_has_files_of_its_own_and_one_table_has_all(
        self, measuring: Measuring, capsys: pytest.CaptureFixture[str]
    ) -> None:
        profile_command(JOB, on=TWO)
        assert [written(file) for file in FILES] == [NEW, NEW]
        assert sorted(Path().iterdir()) == sorted([*FILES, *(file.with_suffix(".html") for file in FILES)])
        out = capsys.readouterr().out
        assert "job on 2 offers" in out
        lines = out.splitlines()
        assert "local: measured" in lines
        assert "aws.lambda.1024: measured" in lines
        assert lines[-2:] == [
            "profile: job.aws.lambda.1024.profile.json",
            "picture: job.aws.lambda.1024.profile.html",
        ]

    def test_what_still_holds_is_kept_for_each_by_itself(
        self, measuring: Measuring, capsys: pytest.CaptureFixture[str]
    ) -> None:
        FILES[0].write_bytes(encode_record(HELD).replace(b"\n", b"\n\n"))
        before = FILES[0].read_bytes()
        measuring.still_holds = True
        profile_command(JOB, on=TWO)
        assert measuring.known == [HELD, None]
        assert FILES[0].read_bytes() == before
        assert written(FILES[1]) == NEW
        lines = capsys.readouterr().out.splitlines()
        assert (
            "local: nothing has changed since 2026-11-02, so the profile is still valid; --again measures again"
            in lines
        )
        assert "aws.lambda.1024: measured" in lines

    def test_when_it_fails_nothing_is_written(self, measuring: Measuring) -> None:
        FILES[0].write_bytes(encode_record(HELD))
        measuring.fails = True
        with pytest.raises(MemberFailed):
            profile_command(JOB, on=TWO, again=True)
        assert written(FILES[0]) == HELD
        assert list(Path().iterdir()) == [FILES[0]]

    def test_when_one_file_cannot_be_written_none_is(
        self, measuring: Measuring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_text = Path.write_text

        def fail(path: Path, text: str, **others: Any) -> int:
            if "lambda" in path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write_text(path, text, **others)

        monkeypatch.setattr(Path, "write_text", fail)
        with pytest.raises(InputError, match=r"job\.aws\.lambda\.1024\.profile\.html cannot be written: No space left"):
            profile_command(JOB, on=TWO)
        assert list(Path().iterdir()) == []

    @pytest.mark.parametrize("option", ["out", "picture"])
    def test_one_name_for_all_of_them_is_refused(self, measuring: Measuring, option: str) -> None:
        with pytest.raises(InputError, match=r"--on names 2; leave them out: the files are then job\.OFFER"):
            profile_command(JOB, on=TWO, **{option: Path("mine")})  # type: ignore[arg-type]
        assert measuring.known == []

    def test_json_has_them_by_their_names(self, measuring: Measuring, capsys: pytest.CaptureFixture[str]) -> None:
        profile_command(JOB, on=TWO, as_json=True)
        found = json.loads(capsys.readouterr().out)
        assert list(found) == ["local", "aws.lambda.1024"]
        for each in found.values():
            assert decode_record(json.dumps(each).encode(), Profile, "stdout") == NEW
