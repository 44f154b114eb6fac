"""What is sent to another machine with a member."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zooid.core.environment import travelling_settings
from zooid.core.errors import InputError
from zooid.core.runs.ticket import Ticket
from zooid.platforms import Launch, orders
from zooid.platforms.orders import order_of
from zooid.platforms.programs import bootstrap_program

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
LAUNCH = Launch(
    Ticket(
        run="run",
        member="m0",
        roster=0,
        program="worker",
        spec_url="s3://bucket/run/specs/000000/m0.json",
        spec_digest="",
        num_threads=1,
    ),
    "ssh.gpu1",
    platform="ssh",
    package="digest",
)


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    orders._login_region.cache_clear()


def test_the_most_specific_endpoint_replaces_all_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert travelling_settings() == {
        "AWS_ENDPOINT_URL_S3": "http://localhost:9000",
        "AWS_ENDPOINT_URL": None,
        "AWS_ENDPOINT": None,
    }


def test_without_an_endpoint_members_have_none_either() -> None:
    assert travelling_settings() == dict.fromkeys(ENDPOINTS)


def test_the_region_is_the_one_that_the_coordinator_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "AWS_REGION" not in order_of(LAUNCH)["environment"]
    orders._login_region.cache_clear()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert order_of(LAUNCH)["environment"]["AWS_REGION"] == "us-west-2"
    orders._login_region.cache_clear()
    (tmp_path / ".aws").mkdir()
    keys = "aws_access_key_id = AKIA\naws_secret_access_key = a secret\n"
    (tmp_path / ".aws" / "credentials").write_text(f"[default]\n{keys}region = eu-central-1\n")
    order = order_of(LAUNCH)
    assert order["environment"]["AWS_REGION"] == "eu-central-1"
    assert "a secret" not in str(order)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert order_of(LAUNCH)["environment"]["AWS_REGION"] == "us-east-1"


@pytest.mark.parametrize(
    "endpoint", ["http://me:secret@host:9000", "me:secret@host:9000", "ftp://me:secret@host", "https://secret@host"]
)
def test_a_password_in_an_endpoint_is_refused_and_not_repeated(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError, match="AWS_ENDPOINT_URL") as error:
        order_of(LAUNCH)
    assert "secret" not in str(error.value).replace("AWS_SECRET_ACCESS_KEY", "")


def test_the_order_overrides_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    order = json.dumps({**order_of(LAUNCH), "store": "file:///nowhere"})
    shown = "import os, sys\ndef _check_interpreter(versions):\n    print(dict(os.environ))\n    sys.exit()"
    own = {"AWS_ENDPOINT_URL": "http://elsewhere", "AWS_ENDPOINT_URL_S3": "http://else", "AWS_REGION": "eu-west-1"}
    ran = subprocess.run(
        [sys.executable, "-c", f"{bootstrap_program()}\n{shown}\nmain_of_order({order!r})"],
        env={**os.environ, **own, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "'AWS_REGION': 'us-east-1'" in ran.stdout
    assert "AWS_ENDPOINT_URL" not in ran.stdout
