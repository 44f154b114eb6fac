"""Credentials of AWS profiles: keys in files are read without boto3, and everything else is left to it."""

from pathlib import Path

import pytest

from zooid.store import cloud_logins
from zooid.store.cloud_logins import aws_login

KEYS = "aws_access_key_id = AKIA\naws_secret_access_key = a%secret\n"
OPTIONS = {"access_key_id": "AKIA", "secret_access_key": "a%secret"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*cloud_logins._OTHER_WAYS, "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def test_keys_of_the_default_profile(home: Path) -> None:
    (home / "credentials").write_text(f"[default]\n{KEYS}[other]\n")
    assert aws_login() == OPTIONS


def test_a_profile_that_is_asked_for_with_its_token_and_region(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "credentials").write_text(f"[work]\n{KEYS}aws_session_token = T\n[default]\naws_access_key_id = X\n")
    (home / "config").write_text("[profile work]\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert aws_login() == {**OPTIONS, "session_token": "T", "region": "eu-central-1"}
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert "region" not in aws_login()


def test_variables_of_the_environment_are_stronger(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "credentials").write_text(f"[default]\n{KEYS}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert aws_login() == {}


@pytest.mark.parametrize("line", ["role_arn = arn:aws:iam::1:role/r\nsource_profile = base", "sso_session = s"])
def test_a_role_is_left_to_boto3(home: Path, line: str) -> None:
    (home / "credentials").write_text(f"[default]\n{KEYS}")
    (home / "config").write_text(f"[default]\n{line}\n")
    assert cloud_logins._stored_keys("default") == {}


@pytest.mark.parametrize("text", ["", "no section\n", "[default]\naws_access_key_id = X\n"])
def test_files_without_keys_have_none(home: Path, text: str) -> None:
    (home / "credentials").write_text(text)
    assert cloud_logins._stored_keys("default") == {}
