"""Members on machines of many clouds, which SkyPilot rents through its own command in its own environment."""

from collections.abc import Callable

from zooid.catalog.provider_accounts import Account
from zooid.catalog.sky_machines import SkyMachine
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.platforms.provider_platform import ProviderPlatform
from zooid.platforms.run_stores import PlatformWithStores, RunStores
from zooid.platforms.skypilot.member_clusters import MemberClusters
from zooid.platforms.skypilot.sky_command import SkyCommand

__all__ = ["skypilot_platform"]

_UNUSED = {
    "region": "the offer names the region of its machine",
    "endpoint": "SkyPilot knows its own server; set SKYPILOT_API_SERVER_ENDPOINT for another one",
}
"""Options of other accounts, and why an account with SkyPilot has none of them."""


def skypilot_platform(
    account: Account,
    offer_of: Callable[[str], Offer],
    machine_of: Callable[[str], SkyMachine],
    look_s: float = 5.0,
) -> ProviderPlatform:
    """Return the platform whose members run on what an account's own `sky` command rents.

    `machine_of` returns the machine of an offer by the offer's name. A look at machines asks their clouds.
    """
    for option, why in _UNUSED.items():
        if option in account.options:
            raise InputError(f"[{account.platform}] in {account.file} has {option!r}, which means nothing here: {why}")

    def open_clusters(where: str, stores: RunStores) -> MemberClusters:
        return MemberClusters(SkyCommand.of(account), account, machine_of, stores)

    return PlatformWithStores(
        account.platform, open_clusters, lambda offer: machine_of(offer.name).infra, offer_of, look_s
    )
