"""The part of a Google Cloud account that members need, from a table of the file of machines."""

from dataclasses import dataclass

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer

_PROJECT = "my-project"
_HERE = ("http://127.0.0.1:", "http://localhost:")


@dataclass(frozen=True)
class RunProject:
    """A project, and the region in which its members are started."""

    account: Account
    project: str
    region: str

    @staticmethod
    def of(account: Account, offer: Offer) -> "RunProject":
        """Return the place of members on an offer, which is in its region."""
        project = account.needed("project", _PROJECT)
        return RunProject(account, project, account.region_of(offer))

    @staticmethod
    def named(account: Account, name: str) -> "RunProject":
        """Return the place that a handle names; InputError if it is not one of this account."""
        project, _, region = name.partition("/")
        if project != account.needed("project", _PROJECT) or not region:
            raise InputError(
                f"a member was started in {name!r} of Google Cloud, and [{account.platform}] in {account.file} names "
                f"the project {account.options['project']}; name its project there"
            )
        return RunProject(account, project, region)

    @property
    def name(self) -> str:
        """The place in handles of members."""
        return f"{self.project}/{self.region}"

    @property
    def parent(self) -> str:
        """The place as requests name it."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def image(self) -> str:
        return self.account.needed("image", f"{self.region}-docker.pkg.dev/{self.project}/zooid/zooid:1")

    @property
    def python(self) -> str:
        """The interpreter in the image."""
        return self.account.options.get("python", "python3")

    @property
    def service_account(self) -> str:
        """Address of the service account that members have; empty for the default one of the project."""
        return self.account.options.get("service_account", "")

    @property
    def endpoint(self) -> str:
        """URL of the Cloud Run Admin API; empty for that of Google Cloud.

        Without TLS, only this machine may be named, because requests carry the user's login.
        """
        given = self.account.options.get("endpoint", "").rstrip("/")
        if given and not given.startswith(("https://", *_HERE)):
            raise InputError(
                f"`endpoint` of [{self.account.platform}] in {self.account.file} is {given!r}; give a URL that begins "
                "with https://"
            )
        return given
