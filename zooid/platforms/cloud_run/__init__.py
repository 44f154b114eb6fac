"""Members as jobs of Google Cloud Run, one job for each."""

from collections.abc import Callable

from zooid.catalog.provider_accounts import Account
from zooid.core.resources.offer import Offer
from zooid.platforms.cloud_run.cloud_run_jobs import CloudRunJobs
from zooid.platforms.cloud_run.run_project import RunProject
from zooid.platforms.provider_platform import ProviderPlatform

__all__ = ["cloud_run_platform"]


def cloud_run_platform(account: Account, offer_of: Callable[[str], Offer]) -> ProviderPlatform:
    """Return the platform whose members run in the project of an account."""
    return ProviderPlatform(
        account.platform,
        lambda where: CloudRunJobs(RunProject.named(account, where)),
        lambda offer: RunProject.of(account, offer).name,
        offer_of,
        look_s=4.0,
    )
