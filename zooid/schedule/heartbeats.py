"""Intervals of heartbeats in a store."""

HEARTBEAT_S = 2.0
"""Seconds between two heartbeats of a member."""
LOOK_S = 1.0
"""Seconds between two looks at the heartbeat of a watched member."""
CALL_S = 0.5
"""Seconds between two looks whether others have begun to replace the roster."""
SILENCE_S = 2 * HEARTBEAT_S
"""The shortest silence after which a member counts as lost."""
NUM_WATCHED = 2
"""Number of members that each member watches: its two neighbours in the roster."""


def requests_per_s(num_members: int) -> tuple[float, float]:
    """Puts and gets per second of one member; they do not grow beyond three members."""
    if num_members == 1:
        return 0.0, 0.0
    return 1 / HEARTBEAT_S, min(NUM_WATCHED, num_members - 1) / LOOK_S + 1 / CALL_S
