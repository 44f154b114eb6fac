"""The part of an Azure account that members need, from a table of the file of machines."""

from dataclasses import dataclass

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer

_GROUP = "zooid"
_SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
_IDENTITY = (
    f"/subscriptions/{_SUBSCRIPTION}/resourceGroups/{_GROUP}/providers/Microsoft.ManagedIdentity/"
    "userAssignedIdentities/zooid-member"
)


@dataclass(frozen=True)
class AzurePlace:
    """A resource group of a subscription, and the region in which its members are started."""

    account: Account
    subscription: str
    resource_group: str
    region: str

    @property
    def name(self) -> str:
        """The place in handles of members."""
        return f"{self.subscription}/{self.resource_group}/{self.region}"

    @property
    def endpoint(self) -> str:
        """URL of the resource manager; empty for that of the public cloud."""
        return self.account.options.get("endpoint", "").rstrip("/")

    @property
    def image(self) -> str:
        return self.account.needed("image", "zooidmembers.azurecr.io/zooid:1")

    @property
    def python(self) -> str:
        """The interpreter in the image."""
        return self.account.options.get("python", "python3")

    @property
    def identity(self) -> str:
        """Resource ID of the identity that members have; empty if they have none."""
        identity = self.account.options.get("identity", "")
        if identity and "/userAssignedIdentities/" not in identity:
            raise InputError(
                f"`identity` of [{self.account.platform}] in {self.account.file} is {identity!r}; give the resource ID "
                f"of a user-assigned identity, such as {_IDENTITY}"
            )
        return identity

    @property
    def registry(self) -> str:
        """The registry from which the identity pulls the image; empty if the image needs no login."""
        server = self.image.partition("/")[0]
        return server if self.identity and server.endswith(".azurecr.io") else ""

    @property
    def environment(self) -> str:
        """Resource ID of the Container Apps environment."""
        given = self.account.needed("environment", "zooid-environment")
        if "/" in given:
            return given
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}/providers/"
            f"Microsoft.App/managedEnvironments/{given}"
        )


def place_of(account: Account, offer: Offer) -> AzurePlace:
    """Return the place of members on an offer, which is in its region."""
    return _place(account, account.region_of(offer))


def place_named(account: Account, name: str) -> AzurePlace:
    """Return the place that a handle names; InputError if it is not one of this account."""
    place = _place(account, name.rpartition("/")[2])
    if place.name != name or not place.region:
        raise InputError(
            f"a member was started in {name!r} of Azure, and [{account.platform}] in {account.file} names "
            f"{place.subscription}/{place.resource_group}; name its subscription and resource group there"
        )
    return place


def _place(account: Account, region: str) -> AzurePlace:
    return AzurePlace(
        account,
        account.needed("subscription", _SUBSCRIPTION),
        account.needed("resource_group", _GROUP),
        region,
    )
