"""Actions from their texts, so that tests can write `2RECV_F5`."""

import re

from zooid.schedule.actions import Action, Kind


def parse_action(text: str) -> Action:
    """
    >>> parse_action("2RECV_F5")
    Action(stage=2, kind=<Kind.RECEIVE_FORWARD: 'RECV_F'>, number=5)
    """
    match = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", text)
    assert match is not None, f"{text!r} is no action"
    return Action(int(match[1]), Kind(match[2]), int(match[3]) if match[3] else None)
