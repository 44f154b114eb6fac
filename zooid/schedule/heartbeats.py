"""How often members give signs of life in a store, and how often they look for those of others."""

SIGN_S = 2.0
"""Every member writes a sign of life that often."""
LOOK_S = 1.0
"""It looks that often for the signs of each member that it watches."""
CALL_S = 0.5
"""It looks that often whether the others have begun to replace the roster."""
SILENCE_S = 2 * SIGN_S
"""The shortest silence after which a member is lost."""
NUM_WATCHED = 2
"""A member watches the one before and the one after it in the roster."""


def requests_per_s(num_members: int) -> tuple[float, float]:
    """(puts, gets) of one of so many members. From three on, their number does not matter."""
    if num_members == 1:
        return 0.0, 0.0
    return 1 / SIGN_S, min(NUM_WATCHED, num_members - 1) / LOOK_S + 1 / CALL_S
