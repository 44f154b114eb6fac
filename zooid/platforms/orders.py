"""Orders: what is sent to another machine, so that it fetches zooid and attends a member."""

from functools import cache
from typing import Any

import msgspec

from zooid.core.environment import travelling_settings
from zooid.core.runs import keys
from zooid.platforms.platform import Launch
from zooid.store.cloud_logins import aws_login


def order_of(launch: Launch) -> dict[str, Any]:
    """Return the order for a launch. It holds no secret: credentials come from where the member runs."""
    assert launch.package, "a member elsewhere needs zooid"
    ticket = launch.ticket
    store_url = keys.split_spec_url(ticket.spec_url)[0]
    return {
        "run": ticket.run,
        "title": ticket.title,
        "store": store_url,
        "zooid": launch.package,
        "environment": travelling_settings(_login_region() if store_url.startswith("s3://") else None),
        "ticket": msgspec.to_builtins(ticket),
    }


@cache
def _login_region() -> str | None:
    """Return the region of the AWS profile that this process uses. To ask for it may take a request."""
    region: str | None = aws_login().get("region")
    return region
