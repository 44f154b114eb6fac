"""Plans and predictions that start from earlier runs: members measure, and `--runs` corrects by what they wrote."""

from pathlib import Path

import pytest
from msgspec import structs

import zooid
from tests.integration.interpreters import run_zooid
from tests.integration.test_docs import job_file
from tests.unit.measured_runs import measured_members
from tests.unit.predicted import a_plan, a_profile, owned
from tests.unit.profiles import store_links
from tests.unit.test_step_meter import write_run
from zooid.coordinator.plans.earlier_runs import learn_so_far
from zooid.coordinator.runs.first_roster import roster_for
from zooid.core.plans.forecast import Forecast
from zooid.core.plans.plan import Limits
from zooid.core.records import decode_record, encode_record
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.store import open_store
from zooid.store.member_measurements import read_measurements

MADE = a_profile(links=store_links(20e6, 0.003))


@pytest.mark.timeout(180)
def test_a_run_feeds_the_next_plan(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(job_file().replace("epochs=2", "epochs=6"))
    url = (tmp_path / "run").as_uri()
    limits = Limits(num_replicas=1, num_stages=2, max_members=2)
    zooid.train(job, store=url, limits=limits, checkpoints=CheckpointRule(every_steps=10))
    measured = read_measurements(open_store(url))
    assert [(member.member, member.stage) for member in measured.members] == [("r0s0", 0), ("r0s1", 1)]
    for member in measured.members:
        assert 0 < member.forward.median_s < member.step.median_s
        assert 0 < member.backward.median_s < member.step.median_s
        assert {message.num_bytes for message in member.messages} != {0}
        assert len(member.starts_s) == 2 * member.num_grains + 1
        assert member.checkpoint is not None
    again = zooid.search(job, runs=[url], limits=limits)
    assert {row.part for row in again.corrections} == {
        "forward", "backward", "update", "bandwidth", "round trip", "step",
    }  # fmt: skip
    other = zooid.plan(job, runs=[url], limits=Limits(num_replicas=2, num_stages=1, max_members=2))
    assert (other.layout, other.model_fingerprint) == ("2x1", measured.plan.model_fingerprint)
    assert {link.source for link in other.links} == {f"corrected by the run in {url}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a plan of two stages, its profile, a run whose members were twice as slow, and a run of another model."""
    plan = a_plan(MADE, owned(), stages=2)
    (tmp_path / "made.plan.json").write_bytes(encode_record(plan))
    (tmp_path / "made.profile.json").write_bytes(encode_record(MADE))
    members = [
        structs.replace(
            member,
            forward=structs.replace(member.forward, median_s=2 * member.forward.median_s),
            backward=structs.replace(member.backward, median_s=2 * member.backward.median_s),
            step=structs.replace(member.step, median_s=2 * member.step.median_s),
            starts_s={action: 2 * start_s for action, start_s in member.starts_s.items()},
        )
        for member in measured_members(plan, {"own": MADE}, MADE.links)
    ]
    roster = roster_for(plan, "run-7", 0, 0)
    write_run(tmp_path / "run", plan, (roster, members))
    write_run(tmp_path / "other", structs.replace(plan, model_fingerprint="other"), (roster, members))
    write_run(tmp_path / "short", plan, (roster, []))
    return tmp_path


def test_a_prediction_says_what_a_run_has_corrected(folder: Path) -> None:
    run = (folder / "run").as_uri()
    plain = run_zooid("predict", "made.plan.json", "--json", cwd=folder)
    told = run_zooid("predict", "made.plan.json", "--runs", run, "--json", cwd=folder)
    before, after = (decode_record(ended.stdout.encode(), Forecast, "stdout") for ended in (plain, told))
    assert before.corrections == ()
    assert after.prediction.step_s == pytest.approx(2 * before.prediction.step_s, rel=0.05)
    ended = run_zooid("predict", "made.plan.json", "--runs", run, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    for words in ("corrected by a run", "forward of a grain", "stage 1 on own", "here to store", "factor", run):
        assert words.replace(" ", "") in "".join(ended.stdout.split()), "however the lines are broken"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other", "trained another model than the profile of made is of: its fingerprint is other, not f"),
        ("short", "has no measurements of all members of a roster"),
        ("nowhere", "holds no run"),
    ],
)
def test_a_run_that_says_nothing_about_the_model_is_refused(folder: Path, name: str, message: str) -> None:
    ended = run_zooid("predict", "made.plan.json", "--runs", (folder / name).as_uri(), cwd=folder)
    assert ended.returncode != 0
    assert message in ended.stderr.replace("\n", " ")
    assert "Traceback" not in ended.stderr


def test_a_run_learns_from_itself_once_its_members_have_measured(folder: Path) -> None:
    known, links = {"own": MADE}, MADE.links
    nothing = learn_so_far(known, links, open_store((folder / "short").as_uri()))
    assert (nothing.profiles, nothing.links, nothing.corrections) == (known, links, ())
    learned = learn_so_far(known, links, open_store((folder / "run").as_uri()))
    before, after = (profile["own"].layers[0].forward_s(4) for profile in (known, learned.profiles))
    assert after == pytest.approx(2 * before, rel=0.05)
