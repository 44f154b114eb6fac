"""What environment variables may say, and what is refused."""

import pytest

from zooid.core.environment import profile_effort
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
