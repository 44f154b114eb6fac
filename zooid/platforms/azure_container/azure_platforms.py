"""The platforms of Azure's containers. The packages of Azure are imported when a member is first started or listed."""

from collections.abc import Callable

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.platforms.azure_container.azure_account import place_named, place_of
from zooid.platforms.provider import Provider
from zooid.platforms.provider_platform import ProviderPlatform


def group_platform(account: Account, offer_of: Callable[[str], Offer]) -> ProviderPlatform:
    """Return the platform whose members are container groups of Azure Container Instances."""

    def open_provider(where: str) -> Provider:
        try:
            from zooid.platforms.azure_container.container_groups import ContainerGroups
        except ImportError as error:
            raise _missing(account, error) from error
        return ContainerGroups(place_named(account, where))

    return _platform(account, open_provider, offer_of)


def job_platform(account: Account, offer_of: Callable[[str], Offer]) -> ProviderPlatform:
    """Return the platform whose members are jobs of Azure Container Apps."""

    def open_provider(where: str) -> Provider:
        try:
            from zooid.platforms.azure_container.container_jobs import ContainerJobs
        except ImportError as error:
            raise _missing(account, error) from error
        return ContainerJobs(place_named(account, where))

    return _platform(account, open_provider, offer_of)


def _platform(
    account: Account, open_provider: Callable[[str], Provider], offer_of: Callable[[str], Offer]
) -> ProviderPlatform:
    return ProviderPlatform(account.platform, open_provider, lambda offer: place_of(account, offer).name, offer_of)


def _missing(account: Account, error: ImportError) -> InputError:
    return InputError(
        f"members on {account.platform} need packages of Azure, which are not installed ({error}); install them with: "
        "pip install 'zooid[azure]'"
    )
