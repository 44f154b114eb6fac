"""Orders: what is sent to another machine, so that it fetches zooid and attends a member."""

from typing import Any

import msgspec

from zooid.core.environment import travelling_settings
from zooid.core.runs import keys
from zooid.platforms.platform import Launch


def order_of(launch: Launch) -> dict[str, Any]:
    """Return the order for a launch. It holds no secret: credentials come from where the member runs."""
    assert launch.package, "a member elsewhere needs zooid"
    ticket = launch.ticket
    return {
        "run": ticket.run,
        "title": ticket.title,
        "store": keys.split_spec_url(ticket.spec_url)[0],
        "zooid": launch.package,
        "environment": travelling_settings(),
        "ticket": msgspec.to_builtins(ticket),
    }
