"""Short phrases that tables and pages of every kind share."""

from collections.abc import Callable

ESTIMATE = "ESTIMATE"
NOTHING = "–"


def or_nothing(value: float | None, show: Callable[[float], str]) -> str:
    """Show a value, or a dash where there is none."""
    return NOTHING if value is None else show(value)


def count_in_words(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


def span_in_words(first: int, end: int) -> str:
    """Name the numbers from `first` up to but not including `end`."""
    return str(first) if end - first == 1 else f"{first} to {end - 1}"


def percent(fraction: float) -> str:
    """
    >>> percent(0.2584), percent(1e-6)
    ('25.8 %', '< 0.1 %')
    """
    return "< 0.1 %" if 0 < fraction < 0.001 else f"{fraction * 100:.1f} %"


def whole_percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %"


def signed_percent(fraction: float | None) -> str:
    return or_nothing(fraction, lambda known: f"{known * 100:+.1f} %")
