"""The suite of platforms as somebody with an account runs it, here against an endpoint of the laboratory."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from lab.endpoints.function_scene import function_scene
from lab.platform_scenes import Scene
from tests.scenes import or_skip

pytestmark = pytest.mark.timeout(240)

SUITE = "tests/contract/test_platforms.py"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with or_skip(function_scene()) as made:
        yield made


def run_suite(scene: Scene, chosen: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests of the suite on the offer of a scene, which counts as a real account for it."""
    assert scene.url is not None
    account = ("--real", scene.offers[0].name, "--real-store", scene.url("tests"))
    command = [sys.executable, "-m", "pytest", "-s", "-q", SUITE, "-k", chosen, *account, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_it_passes_within_its_limit_and_leaves_nothing(scene: Scene) -> None:
    answer = run_suite(scene, "test_the_exit_status_is_known or test_a_notice_reaches_the_member")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "2 passed, 1 skipped" in answer.stdout
    assert "spent at most 0.0" in answer.stdout
    assert scene.leftovers("") == []


def test_it_starts_nothing_that_could_exceed_its_limit(scene: Scene) -> None:
    answer = run_suite(scene, "test_the_exit_status_is_known", "--spend-usd", "0.001")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "; nothing was started: give --spend-usd" in answer.stdout
    assert "spent at most 0.0000 dollars" in answer.stdout


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--real", "local"), "give an offer that is rented, such as aws.lambda.2048"),
        (("--real", "aws.lambda.2048"), "needs a store that members reach; give its URL with --real-store"),
    ],
)
def test_missing_settings_are_named(options: tuple[str, ...], complaint: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", SUITE, "-k", "test_the_exit_status_is_known", *options]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert answer.returncode == 1
    assert complaint in answer.stdout
