"""Quantities as people write them: read, printed, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zooid.core.errors import InputError, UnitError
from zooid.core.units import (
    format_bytes,
    format_bytes_per_s,
    format_duration,
    format_usd,
    parse_bytes,
    parse_duration_s,
    parse_usd,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("90s", 90),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("5min", 300),
        ("5m", 300),
        ("1d", 86400),
        (" 10 s ", 10),
        ("1e3s", 1000),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "5 parsecs", "-5s", "5s!", "1.2.3s", "5S", "nan", "inf s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UnitError, match="is not a duration; write a number and ms, s, m, h or d") as caught:
        parse_duration_s(text)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0 B", 0),
        ("20 MB", 20_000_000),
        ("20MB", 20_000_000),
        ("1.5 GB", 1_500_000_000),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("1 KiB", 1024),
        ("16 MiB", 16 * 2**20),
        ("2 TiB", 2 * 2**40),
    ],
)
def test_sizes_are_read(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "20", "MB", "20 mb", "20 MB/s", "-1 MB", "20 M B", "twenty MB"])
def test_what_is_no_size_is_refused_with_the_units_allowed(text: str) -> None:
    with pytest.raises(UnitError, match=r"is not a size; write a number and one of B, kB, .*for example 20 MB"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "usd"), [("$5", 5), ("5", 5), ("0.25", 0.25), ("5 USD", 5), ("$ 5", 5)])
def test_money_is_read(text: str, usd: float) -> None:
    assert parse_usd(text) == usd


@pytest.mark.parametrize("text", ["", "$", "-5", "5 EUR", "5$", "five", "5,00"])
def test_what_is_no_money_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match=r"is not an amount of money; write dollars, for example \$5"):
        parse_usd(text)


@given(st.floats(min_value=1e-6, max_value=59))
def test_short_durations_survive_the_round_trip(seconds: float) -> None:
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=0.006)


@given(st.integers(min_value=60, max_value=10**8))
def test_long_durations_lose_less_than_their_second_unit(seconds: int) -> None:
    second_unit_s = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1
    assert 0 <= seconds - parse_duration_s(format_duration(seconds)) < second_unit_s


@given(st.floats(min_value=1, max_value=1e18))
def test_sizes_survive_the_round_trip(num_bytes: float) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=6e-4, abs=0.5)


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_a_rate_is_a_size_a_second(bytes_per_s: float) -> None:
    assert format_bytes_per_s(bytes_per_s) == f"{format_bytes(bytes_per_s)}/s"


@given(st.floats(min_value=0, max_value=1e9))
def test_money_survives_the_round_trip(usd: float) -> None:
    assert parse_usd(format_usd(usd)) == pytest.approx(usd, rel=6e-3, abs=0.005 + 1e-9 if usd >= 0.1 else 1e-8)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.25, "250ms"), (0.9996, "1s"), (59.99, "60s"), (119.6, "2m"), (5400, "1h30m"), (-5400, "-1h30m")],
)
def test_durations_are_printed_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"), [(0, "$0.00"), (5, "$5.00"), (0.0512, "$0.0512"), (0.00001234, "$0.00001234"), (1e-10, "$0")]
)
def test_money_is_printed_for_people(usd: float, text: str) -> None:
    assert format_usd(usd) == text
