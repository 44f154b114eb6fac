"""How long before the end of a member's lifetime its successor is started."""

_FIRST_LEAD_FRACTION = 0.3
"""Fraction of its life that is left when the first successor is started, since nobody knows how long that takes."""
_LEAD_FACTOR = 2.0
"""A successor is started this many times earlier than the slowest member so far has needed to join."""
_MIN_LEAD_S = 2.0
MAX_LEAD_FRACTION = 0.6
"""Largest fraction of its life that is left when a successor is started, except for a first one."""
MAX_JOINING_FRACTION = 0.5
"""A successor must join within this fraction of its life, since its own one is started when it has its seat."""


def successor_lead_s(lifetime_s: float, joining_s: float, expected_s: float = 0.0) -> float:
    """The time between the start of a successor and the end of its predecessor's lifetime.

    `joining_s` is the longest time from the start of a member until it had its seat; 0 while nobody has joined yet.
    Until then, `expected_s` is how long that should take at most; 0 if nobody knows. The first successor may be started
    as soon as the first members have their seats, even if less than half of their life is over then.

    >>> successor_lead_s(900.0, 0.0), successor_lead_s(900.0, 20.0), successor_lead_s(900.0, 500.0)
    (270.0, 40.0, 540.0)
    >>> successor_lead_s(900.0, 0.0, 20.0), successor_lead_s(900.0, 0.0, 200.0)
    (270.0, 400.0)
    >>> successor_lead_s(20.0, 0.0, 6.0), successor_lead_s(20.0, 0.0, 8.0), successor_lead_s(20.0, 8.0, 8.0)
    (12.0, 12.0, 12.0)
    """
    max_lead_s = MAX_LEAD_FRACTION * lifetime_s
    if joining_s:
        lead_s = _LEAD_FACTOR * joining_s
    else:
        lead_s = max(_FIRST_LEAD_FRACTION * lifetime_s, _LEAD_FACTOR * expected_s)
        max_lead_s = max(max_lead_s, lifetime_s - expected_s if expected_s else 0.0)
    return min(max(lead_s, _MIN_LEAD_S), max_lead_s)
