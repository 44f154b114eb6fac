"""Texts of others on a terminal and in messages: shown as they are, without markup, escape sequences or passwords."""

import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console
from rich.table import Table

import zooid
from tests.fuzz.record_samples import TIMELINE, a_forecast, a_search
from tests.unit.test_records import a_link, a_plan, a_profile
from zooid.cli.main import main
from zooid.comm.group_options import Options
from zooid.core.errors import InputError, UnitError, ZooidError
from zooid.core.resources.link import Links, MissingLink
from zooid.core.runs.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    MemberPrinted,
    MemberStarted,
    OptimizerChanged,
    PhaseStarted,
    RunFinished,
    RunStarted,
    StoppedEarly,
)
from zooid.core.runs.timeline import action_name
from zooid.core.units import parse_bytes, parse_duration_s, parse_usd
from zooid.report import (
    links_table,
    offers_table,
    plan_table,
    prediction_page,
    prediction_tables,
    profile_page,
    profile_table,
    search_page,
    search_table,
    timeline_page,
    timeline_table,
)
from zooid.report.progress import BarView, LineView
from zooid.store import open_store

HOSTILE = "[/bold] [red]x\x1b[2J\\"
SHOWN = "[/bold] [red]x\\x1b[2J\\"


def a_console(*, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, color_system=None, width=2000)


def output_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def events() -> list[Event]:
    started = RunStarted(
        at_s=1.0, run=HOSTILE, store=HOSTILE, layout=HOSTILE, num_steps=2, first_step=0, batch_size=1,
        predicted_step_s=1.0, predicted_run_s=1.0, predicted_usd=1.0, members=("m",), prices=HOSTILE, why_whole=HOSTILE,
        checkpoints=HOSTILE,
    )  # fmt: skip
    return [
        PhaseStarted(at_s=0.0, phase=HOSTILE),
        OptimizerChanged(at_s=0.5, settings={HOSTILE: (HOSTILE,)}, before={}),
        started,
        MemberStarted(at_s=2.0, member="m", num_layers=1, parameter_bytes=1),
        Evaluated(at_s=3.0, epoch=0, step=1, loss=1.0, metrics={HOSTILE: 0.5}, num_samples=1, wall_s=1.0),
        CheckpointSaved(at_s=4.0, step=1, url=f"file:///{HOSTILE}", pause_s=math.inf, next_in_s=math.nan),
        MemberPrinted(at_s=5.0, member="m", text=HOSTILE),
        StoppedEarly(at_s=6.0, step=1, reason=HOSTILE),
        RunFinished(at_s=7.0, wall_s=1.0, step_s=1.0, usd=1.0, checkpoint=HOSTILE),
    ]


@pytest.mark.parametrize("view", [LineView, BarView])
@pytest.mark.parametrize("event", events(), ids=lambda event: type(event).__name__)
def test_a_view_shows_every_text_of_an_event_as_it_is(view: type[LineView] | type[BarView], event: Event) -> None:
    console = a_console(is_terminal=view is BarView)
    with view(console) as shown:
        if not isinstance(event, RunStarted | PhaseStarted | OptimizerChanged):
            shown.show(events()[2])
        shown.show(event)
    output = output_of(console)
    assert "\x1b[2J" not in output
    assert not isinstance(event, Evaluated | CheckpointSaved | MemberPrinted | StoppedEarly) or SHOWN in output


def links() -> Links:
    hostile = a_link(from_site=HOSTILE, to_site=HOSTILE)
    gap = MissingLink(from_site=HOSTILE, to_site=HOSTILE, reason=HOSTILE)
    return Links(zooid_version="1", date=HOSTILE, links=(hostile,), missing=(gap,))


def tables() -> dict[str, Callable[[], Table]]:
    layer = structs.replace(a_profile().layers[0], name=HOSTILE)
    profile = a_profile(job=HOSTILE, layers=(layer,), date=HOSTILE)
    offer = structs.replace(a_plan().offers[0], name=HOSTILE)
    stages = tuple(structs.replace(stage, offer=HOSTILE) for stage in a_plan().stages)
    plan = a_plan(job=HOSTILE, offers=(offer,), stages=stages)
    found = structs.replace(a_search(), pick=structs.replace(a_search().pick, job=HOSTILE))
    forecast = structs.replace(a_forecast(), job=HOSTILE, layout=HOSTILE, prices=HOSTILE)
    timeline = structs.replace(
        TIMELINE, intervals=tuple(structs.replace(each, member=HOSTILE) for each in TIMELINE.intervals)
    )
    return {
        "profile": lambda: profile_table(profile),
        "offers": lambda: offers_table({HOSTILE: profile}),
        "plan": lambda: plan_table(plan),
        "search": lambda: search_table(found),
        "prediction": lambda: prediction_tables(forecast)[0],
        "timeline": lambda: timeline_table(timeline, HOSTILE),
        "links": lambda: links_table(links()),
    }


@pytest.mark.parametrize("name", ["profile", "offers", "plan", "search", "prediction", "timeline", "links"])
def test_a_table_shows_every_text_of_a_record_as_it_is(name: str) -> None:
    console = a_console()
    console.print(tables()[name]())
    assert SHOWN in output_of(console)
    assert "\x1b" not in output_of(console)


def test_a_command_shows_its_error_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["zooid", "timeline", f"file://{tmp_path}/[/bold]\x1b[2J"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit):
        main()
    error = capsys.readouterr().err
    assert "[/bold]\\x1b[2J has no recorded step" in error.replace("\n", "")


class TestAddresses:
    @pytest.mark.parametrize(
        "url", ["s3://me:secret@bucket/run", "s3://secret@bucket/run", "gs://a:secret@b/c", "az://k:p@secret@c/d"]
    )
    def test_credentials_in_a_url_are_refused_and_not_repeated(self, url: str) -> None:
        for refused in (open_store, zooid.load_checkpoint, zooid.index_shards):
            with pytest.raises(InputError, match="a user's name or a password") as error:
                refused(url)
            assert "secret" not in str(error.value)
        assert "set AWS_ACCESS_KEY_ID" in str(error.value) or not url.startswith("s3")

    def test_a_signature_in_a_url_is_not_repeated(self) -> None:
        with pytest.raises(InputError, match="must not contain") as error:
            open_store("az://container/run?sig=secret")
        assert "secret" not in str(error.value)

    def test_an_at_sign_in_a_path_is_no_password(self, tmp_path: Path) -> None:
        open_store(f"{tmp_path.as_uri()}/me@home").put("key", b"")

    def test_the_password_of_an_endpoint_is_not_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZOOID_STORE_PATIENCE", "1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:secret@127.0.0.1:9")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "us-east-1")
        with pytest.raises(ZooidError) as error:
            open_store("s3://bucket/run").get("key")
        assert "secret" not in str(error.value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "ftp://me:secret@127.0.0.1:9")
        with pytest.raises(InputError, match="must start with http") as refused:
            open_store("s3://bucket/run")
        assert "secret" not in str(refused.value)


class TestNumbers:
    @pytest.mark.parametrize("parse", [parse_duration_s, parse_bytes, parse_usd])
    @pytest.mark.parametrize("number", ["1e999", "9" * 400])
    def test_a_number_beyond_all_is_refused(self, parse: Callable[[str], float], number: str) -> None:
        unit = {parse_duration_s: "s", parse_bytes: " MB", parse_usd: ""}[parse]  # type: ignore[index]
        with pytest.raises(UnitError, match=r"too large|too long"):
            parse(number + unit)

    @pytest.mark.parametrize("number", ["²", "9" * 5000, "1e3", ""])
    def test_an_option_that_is_no_number_is_refused(self, number: str) -> None:
        with pytest.raises(InputError, match="must be a number"):
            Options.from_query({"num_streams": number}, "s3://bucket/run")

    def test_an_action_with_an_absurd_number_is_only_a_name(self) -> None:
        assert action_name("9" * 5000 + "F0").stage is None


TAG = "<script>alert(1)</script>"


def pages() -> dict[str, Callable[[], str]]:
    layer = structs.replace(a_profile().layers[0], name=TAG)
    profile = a_profile(job=TAG, layers=(layer,), date=TAG)
    found = a_search()
    pick = structs.replace(found.pick, job=TAG)
    found = structs.replace(found, pick=pick, front=(pick,), reasons=(TAG,))
    bottleneck = structs.replace(a_forecast().bottleneck, member=TAG, sentence=TAG)
    forecast = structs.replace(a_forecast(), job=TAG, layout=TAG, prices=TAG, bottleneck=bottleneck, notes=(TAG,))
    intervals = tuple(structs.replace(each, member=TAG, action=TAG) for each in TIMELINE.intervals)
    timeline = structs.replace(TIMELINE, intervals=intervals)
    return {
        "profile": lambda: profile_page(profile),
        "search": lambda: search_page(found, origin=TAG),
        "prediction": lambda: prediction_page(forecast, origin=TAG),
        "timeline": lambda: timeline_page({TAG: timeline}, title=TAG, origin=TAG),
    }


@pytest.mark.parametrize("name", ["profile", "search", "prediction", "timeline"])
def test_a_page_holds_no_tag_of_others(name: str) -> None:
    page = pages()[name]()
    assert "alert(1)" in page
    assert TAG not in page
