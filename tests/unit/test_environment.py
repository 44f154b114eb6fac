"""What environment variables may say, and what is refused."""

import getpass
import os

import pytest

from zooid.core.environment import member_settings, profile_effort, store_patience_s
from zooid.core.errors import InputError


def test_a_profile_takes_all_its_time_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOOID_PROFILE_EFFORT", raising=False)
    assert profile_effort() == 1.0
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", "0.25")
    assert profile_effort() == 0.25


@pytest.mark.parametrize("text", ["", "0", "1.5", "-1", "nan", "little"])
def test_an_effort_that_is_no_part_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOOID_PROFILE_EFFORT", text)
    with pytest.raises(InputError, match=r"must be a number above 0 and at most 1, for example 0\.1"):
        profile_effort()


def test_a_store_is_asked_for_two_minutes_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOOID_STORE_PATIENCE", raising=False)
    assert store_patience_s() == 120.0
    monkeypatch.setenv("ZOOID_STORE_PATIENCE", "300")
    assert store_patience_s() == 300.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "long"])
def test_a_patience_that_is_no_time_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOOID_STORE_PATIENCE", text)
    with pytest.raises(InputError, match="must be a number of seconds from 1 to 86400"):
        store_patience_s()


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert "USER" not in member_settings(1)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # nobody has this number
    with pytest.raises((KeyError, OSError), match="54321"):
        getpass.getuser()
    monkeypatch.setenv("USER", member_settings(1)["USER"])
    assert getpass.getuser() == "user54321"
    monkeypatch.setenv("USER", "ada")
    assert "USER" not in member_settings(1)
