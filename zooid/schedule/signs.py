"""How often members give signs of life in a store, and how often they look for those of others."""

SIGN_S = 2.0
"""Every member writes a sign of life that often."""
LOOK_S = 1.0
"""It looks that often for the signs of each member that it watches."""
CALL_S = 0.5
"""It looks that often whether the others have begun to replace the roster."""
SILENCE_S = 2 * SIGN_S
"""The shortest silence after which a member is lost."""
_DAY_S = 86_400.0


def requests_per_day(num_watched: int) -> tuple[float, float]:
    """(puts, gets) of one member that watches so many others."""
    return _DAY_S / SIGN_S, num_watched * _DAY_S / LOOK_S + _DAY_S / CALL_S
