"""Conversion between text and quantities: durations, sizes, rates and money.

Inside the program every quantity is a plain number in its base unit (seconds, bytes, bytes per second, dollars), and
its name says the unit. Only this module converts from and to text.
"""

import math
import re

from zooid.core.errors import UnitError
from zooid.core.text import quoted

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_YEAR = 8760 * SECONDS_PER_HOUR

_MAX_CHARACTERS = 400
"""Longer texts are rejected, because searching them for numbers would take minutes."""
_SMALL_NUMBER = re.compile("-?[0-9]{1,9}")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"

_DURATION_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": SECONDS_PER_HOUR, "d": 86400.0}
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(ms|min|s|m|h|d)\s*")

_DECIMAL_SIZES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE_BYTES = {**_DECIMAL_SIZES, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def small_number(text: str) -> int | None:
    """Parse a whole number of at most nine digits, possibly negative; None if the text is anything else.

    >>> small_number("12"), small_number("-3"), small_number("²"), small_number("9" * 5000)
    (12, -3, None, None)
    """
    return int(text) if _SMALL_NUMBER.fullmatch(text) else None


def parse_duration_s(text: str) -> float:
    """Parse a duration such as `2h`, `1h30m`, `90s` or `250ms` into seconds.

    >>> parse_duration_s("1h30m")
    5400.0
    """
    stripped = _short(text).strip()
    parts = _DURATION_PART.findall(stripped)
    if not parts or _DURATION_PART.sub("", stripped):
        raise UnitError(
            f"{quoted(text)!r} is not a duration; write a number and ms, s, m, h or d, for example 90s or 1h30m"
        )
    return _finite(sum(float(number) * _DURATION_S[unit] for number, unit in parts), text)


def parse_bytes(text: str) -> int:
    """Parse a size such as `20 MB` (decimal) or `16 MiB` (binary) into bytes.

    >>> parse_bytes("20 MB")
    20000000
    """
    match = re.fullmatch(rf"({_NUMBER})\s*(\S+)", _short(text).strip())
    if match is None or match[2] not in _SIZE_BYTES:
        allowed = ", ".join(_SIZE_BYTES)
        raise UnitError(f"{quoted(text)!r} is not a size; write a number and one of {allowed}, for example 20 MB")
    return round(_finite(float(match[1]) * _SIZE_BYTES[match[2]], text))


def parse_usd(text: str) -> float:
    """Parse an amount of money such as `$5`, `5` or `5 USD` into dollars.

    >>> parse_usd("$5")
    5.0
    """
    match = re.fullmatch(rf"\$?\s*({_NUMBER})\s*(?:USD)?", _short(text).strip())
    if match is None:
        raise UnitError(f"{quoted(text)!r} is not an amount of money; write dollars, for example $5 or 0.25")
    return _finite(float(match[1]), text)


def format_duration(seconds: float) -> str:
    """Format a duration with at most two units, in a form that `parse_duration_s` reads.

    >>> format_duration(5400)
    '1h30m'
    """
    if not math.isfinite(seconds):
        return f"{seconds:g}"
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.9995:  # above, three digits of milliseconds would read 1e+03
        return f"{seconds * 1e3:.3g}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    for unit, unit_s, smaller_unit in (("d", 86400, "h"), ("h", 3600, "m"), ("m", 60, "s")):
        if whole >= unit_s:
            rest = (whole % unit_s) // int(_DURATION_S[smaller_unit])
            return f"{whole // unit_s}{unit}" + (f"{rest}{smaller_unit}" if rest else "")
    raise AssertionError(f"no unit for {seconds} seconds")


def format_bytes(num_bytes: float) -> str:
    """Format a size in decimal units.

    >>> format_bytes(20_000_000)
    '20 MB'
    """
    for unit in ("TB", "GB", "MB", "kB"):
        if abs(num_bytes) >= _SIZE_BYTES[unit]:
            return f"{num_bytes / _SIZE_BYTES[unit]:.4g} {unit}"
    return f"{num_bytes:.4g} B"


def format_bytes_per_s(bytes_per_s: float) -> str:
    """Format a rate in decimal units.

    >>> format_bytes_per_s(20e6)
    '20 MB/s'
    """
    return f"{format_bytes(bytes_per_s)}/s"


def format_usd(usd: float) -> str:
    """Format an amount of money in cents, or with more digits where it is small.

    >>> format_usd(5)
    '$5.00'
    >>> format_usd(0.0001234)
    '$0.000123'
    """
    if usd == 0 or abs(usd) >= 0.1:
        return f"${usd:.2f}"
    return f"${usd:.3g}" if abs(usd) >= 1e-4 else f"${usd:.8f}".rstrip("0").rstrip(".")


def _short(text: str) -> str:
    if len(text) > _MAX_CHARACTERS:
        raise UnitError(f"{quoted(text)!r} is too long for a quantity; write a number and its unit")
    return text


def _finite(number: float, text: str) -> float:
    if not math.isfinite(number):
        raise UnitError(f"{quoted(text)!r} is too large a number; give a smaller one")
    return number
