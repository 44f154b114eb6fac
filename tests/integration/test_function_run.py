"""A run of FuncPipe's kind: one command, from the profile to a trained checkpoint, on functions alone."""

import shlex
from pathlib import Path

import pytest

from lab.endpoints.function_scene import function_scene
from tests.integration.reference import train_composed_layers
from tests.integration.rented_run import slowness, train_and_lose_a_member
from tests.integration.test_container_run import NUM_STEPS, written_job
from tests.integration.travelling_jobs import TOLERANCE
from tests.scenes import or_skip
from zooid.coordinator.plans.offer_names import rented_offer
from zooid.core.runs.events import MemberExited, MemberTrained, RosterChanged, RunFinished

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"
LIFETIME_S, STARTUP_S = 20.0, 5.0
"""The time limit of functions where each has a core, and what they need to start there."""
FIRST = {"r0s0", "r0s1", "r1s0", "r1s1"}
"""Members with which the run begins."""


def documented_options() -> list[str]:
    """Return the options of the command that the documents explain, beside those for the offer and the store."""
    [command] = [line for line in PAGE.read_text().splitlines() if line.startswith("$ zooid train ")]
    words = shlex.split(command)[4:]
    assert words[:4] == ["--on", "aws.lambda.2048", "--store", "s3://bucket/run-7"]
    return words[4:]


def test_one_command_trains_on_functions_that_are_lost_and_run_out_of_time(tmp_path: Path) -> None:
    """Two replicas of a pipeline: one function vanishes, the others hand over before their time is over."""
    expected = train_composed_layers(written_job(tmp_path / "alone", 0.0))
    factor = slowness(len(FIRST))
    lifetime_s = LIFETIME_S * factor
    job_file = written_job(tmp_path / "funcpipe", lifetime_s / NUM_STEPS)  # so that no member lives as long as the run
    own = {"lifetime": f"{lifetime_s:.0f} s", "startup": f"{STARTUP_S * factor:.0f} s"}
    with or_skip(function_scene(**own)) as scene:
        trained = train_and_lose_a_member(scene, job_file, *documented_options(), victim="r1s0", after_step=5)
        assert scene.left_behind is not None
        assert scene.billed_usd is not None
        assert scene.left_behind(trained.run) == []
        assert len(trained.losses) == NUM_STEPS
        assert expected.loss_difference(trained.losses) <= TOLERANCE
        assert expected.weight_difference(trained.url) <= TOLERANCE
        assert "measuring the layers and the store" in trained.output
        [lost] = [event for event in trained.of_kind(MemberExited) if event.member == "r1s0"]
        assert "its function has failed: Runtime.ExitError" in lost.exit_text
        changes = trained.of_kind(RosterChanged)
        assert {"stands", "unfinished"} & {event.ruling for event in changes}, "one was lost"
        assert "planned" in {event.ruling for event in changes}, "others handed over"
        rosters = [set(event.members) for event in changes]
        assert not FIRST & rosters[-1], "none of the first members lives so long"
        assert [roster for roster in rosters if len(roster) == len(FIRST) and not FIRST & roster], "all were succeeded"
        given_bytes = rented_offer("aws.lambda.2048").memory_bytes
        assert all(event.peak_bytes <= given_bytes for event in trained.of_kind(MemberTrained))
        [finished] = trained.of_kind(RunFinished)
        of_members = ("compute", "start-up", "preparation", "starts")
        own_usd = sum(term.usd for term in finished.terms if term.kind in of_members)
        assert own_usd == pytest.approx(scene.billed_usd(""), rel=1e-6), "the profile included"
        page = trained.page(tmp_path)
        assert [member for member in set.union(*rosters) - FIRST if member in page], "it shows successors at work"
