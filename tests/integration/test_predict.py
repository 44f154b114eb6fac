"""`zooid predict` as a user meets it: its tables, its page, JSON, a run beside it, and what it refuses."""

import json
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from tests.integration.interpreters import run_zooid
from tests.integration.test_docs import job_file
from tests.unit.predicted import MB, a_plan, a_profile, owned, rented, write_run
from tests.unit.profiles import SITE, link, store_links
from tests.unit.test_timelines import TimelinePage as Page
from zooid.core.plans.forecast import Forecast
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.link import STORE_SITE, Links


@pytest.fixture
def made() -> Profile:
    return a_profile(links=store_links(20 * MB, 0.003))


@pytest.fixture
def plan(made: Profile) -> Plan:
    return a_plan(made, owned(), replicas=2, stages=2)


@pytest.fixture
def folder(made: Profile, plan: Plan, tmp_path: Path) -> Path:
    """With a plan and, beside it under the job's name, the profile that it was made from."""
    (tmp_path / "made.plan.json").write_bytes(encode_record(plan))
    (tmp_path / "made.profile.json").write_bytes(encode_record(made))
    return tmp_path


def test_a_plan_is_predicted_from_the_profile_beside_it(folder: Path) -> None:
    ended = run_zooid("predict", "made.plan.json", "--perfetto", "step.json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    for words in ("computing", "total, p95", "one more replica, 6 members", "2x2", "bottleneck: ", "granularity: "):
        assert words in ended.stdout
    assert "picture: made.prediction.html" in ended.stdout
    assert set(Page((folder / "made.prediction.html").read_text()).picture["plots"]) == {"time", "money", "gains"}
    assert json.loads((folder / "step.json").read_bytes())["traceEvents"]


def test_json_is_the_record_and_a_run_stands_beside_it(folder: Path, plan: Plan) -> None:
    plain = run_zooid("predict", "made.plan.json", "--json", cwd=folder)
    assert plain.returncode == 0, plain.stderr
    found = decode_record(plain.stdout.encode(), Forecast, "stdout")
    assert found.measured is None
    url = write_run(folder / "run", plan, [1.0, 0.2, 0.2], found.timeline)
    ended = run_zooid(
        "predict", "made.plan.json", "--compare", url, "--store-at", "aws.us-east-1", "--json", cwd=folder
    )
    assert ended.returncode == 0, ended.stderr
    compared = decode_record(ended.stdout.encode(), Forecast, "stdout")
    assert compared.measured is not None
    assert compared.measured.step_s == pytest.approx(0.2)
    assert compared.prediction.step_s == found.prediction.step_s
    assert compared.prediction.run_usd > found.prediction.run_usd


def write_others(folder: Path, plan: Plan, made: Profile) -> None:
    """Files that are refused."""
    no_bandwidth = Links(zooid_version="0", date="2025-01", links=(link(1.0, from_site=SITE, to_site=SITE),))
    text = encode_record(no_bandwidth).decode()
    (folder / "nothing.links.json").write_text(
        text.replace('"bandwidth_bytes_per_s": 1.0', '"bandwidth_bytes_per_s": 0')
    )
    cents = a_plan(made, rented(usd_per_hour=100.0), replicas=2)
    (folder / "cents.plan.json").write_bytes(encode_record(cents))
    (folder / "tcp.plan.json").write_bytes(encode_record(structs.replace(plan, transport="tcp")))
    (folder / "lone.plan.json").write_bytes(encode_record(structs.replace(plan, job="lone")))
    (folder / "other.profile.json").write_bytes(encode_record(structs.replace(made, model_fingerprint="other")))
    (folder / "large.profile.json").write_bytes(encode_record(structs.replace(made, batch_size=64)))
    (folder / "notes.txt").write_text("a plan")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["notes.txt"], "notes.txt is not a zooid plan file"),
        (["made.profile.json"], "holds a 'profile'; expected a 'plan'"),
        (["nowhere.json"], "nowhere.json cannot be read"),
        (["lone.plan.json"], "lone.profile.json, from which the plan was made, does"),
        (["made.plan.json", "--profile", "other.profile.json"], "another model (its fingerprint)"),
        (["made.plan.json", "--profile", "large.profile.json"], "another batch size than the profile: 16, not 64"),
        (["tcp.plan.json"], "no link from 'here' to 'here' is known"),
        (
            ["tcp.plan.json", "--links", "nothing.links.json"],
            "`bandwidth_bytes_per_s` of here to here is 0.0; it must be above 0",
        ),
        (["cents.plan.json", "--store-at", "aws.us-east-1"], "dollars, not cents, for an hour"),
        (["made.plan.json", "--store-at", "s3://bucket/run"], "give the location instead of the URL"),
        (["made.plan.json", "--store-at", "moon.far-side"], "moon"),
        (["made.plan.json", "--compare", "file:///nowhere/at/all"], "holds no run"),
        (["made.plan.json", "--out", "a.html", "--perfetto", "a.html"], "--out and --perfetto both name a.html"),
    ],
)
def test_bad_input_is_refused_with_one_line(
    arguments: list[str], message: str, folder: Path, plan: Plan, made: Profile
) -> None:
    write_others(folder, plan, made)
    before = sorted(path.name for path in folder.iterdir())
    ended = run_zooid("predict", *arguments, cwd=folder)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == before


WHY_NOT = ["--why-not", "aws.lambda.512", "--why-not", "azure.vm.nc6"]


class TestPlannedByCommand:
    @pytest.fixture
    def job(self, tmp_path: Path) -> Path:
        """A folder with a job and a profile of this machine that nobody has to measure."""
        links = (link(20 * MB, from_site="local"), link(20 * MB, from_site=STORE_SITE, to_site="local"))
        (tmp_path / "job.py").write_text(job_file())
        (tmp_path / "job.profile.json").write_bytes(encode_record(a_profile(job="job", links=links)))
        return tmp_path

    def plan(self, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_zooid("plan", "job.py", "--profile", "job.profile.json", "--members", "2", *arguments, cwd=folder)

    def test_why_not_answers_as_often_as_it_is_asked_also_about_what_was_left_out(self, job: Path) -> None:
        ended = self.plan(job, "--on", "aws.lambda", "--on", "azure.vm.nc6", "--store-at", "aws.us-east-1", *WHY_NOT)
        assert ended.returncode == 0, ended.stderr
        small, absent = ended.stdout.splitlines()[-4:-2]
        assert small.startswith("The best on aws.lambda.512, ")
        assert absent.startswith("azure.vm.nc6 is left out: no link of azure.eastus is known")

    def test_why_not_about_what_was_not_asked_for_is_refused_before_anything_else(self, job: Path) -> None:
        ended = self.plan(job, "--why-not", "aws.lambda.1769")
        assert ended.returncode == 2
        assert ended.stderr == "error: --why-not is 'aws.lambda.1769', but --on names local; give one of them\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--on", "aws.lambda"],
            ["--on", "local", "--on", "aws.lambda.1769"],
            ["--on", "gcp.t4", "--store-at", "owned"],
        ],
        ids=["estimates", "mixed", "places"],
    )
    def test_what_was_planned_is_predicted_without_further_options(self, job: Path, arguments: list[str]) -> None:
        assert self.plan(job, *arguments).returncode == 0
        ended = run_zooid("predict", "job.plan.json", "--json", cwd=job)
        assert ended.returncode == 0, ended.stderr
        found = decode_record(ended.stdout.encode(), Forecast, "stdout")
        planned = decode_record((job / "job.plan.json").read_bytes(), Plan, "job.plan.json")
        assert found.prediction.step_s == pytest.approx(planned.prediction.step_s)
        assert found.prediction.run_usd == pytest.approx(planned.prediction.run_usd)

    def test_the_profile_of_an_offer_is_found_beside_the_plan(self, job: Path) -> None:
        offer = "aws.lambda.1769"
        (job / "job.profile.json").rename(job / f"job.{offer}.profile.json")
        ended = run_zooid("plan", "job.py", "--profile", f"job.{offer}.profile.json", "--on", f"local:{offer}", cwd=job)
        assert ended.returncode == 0, ended.stderr
        assert run_zooid("predict", "job.plan.json", cwd=job).returncode == 0
        (job / f"job.{offer}.profile.json").unlink()
        ended = run_zooid("predict", "job.plan.json", cwd=job)
        assert ended.returncode == 2
        assert "job.profile.json, from which the plan was made, does not exist" in ended.stderr
        assert "--profile" in ended.stderr
