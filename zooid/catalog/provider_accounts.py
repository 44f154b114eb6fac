"""The user's accounts with providers, from tables of the file of machines.

[aws_lambda]
image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/zooid:1"   # an image with Python and the members' packages
role = "arn:aws:iam::123456789012:role/zooid-member"             # what members may do
lifetime = "10 min"                                              # a shorter time limit than the provider's
startup = "8 s"                                                  # how long a member takes to start with this image

Credentials are not here: they come from each provider's own login.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zooid.core.errors import InputError, UnitError
from zooid.core.resources.offer import RENTED_PLATFORMS, Offer
from zooid.core.text import quoted
from zooid.core.units import parse_duration_s

_COMMON = ("image", "lifetime", "startup", "region", "endpoint")
"""Options of every account: the image of members, times of members, and where the account is."""
_OPTIONS: dict[str, tuple[str, ...]] = {
    "aws_lambda": ("role",),
    "aws_microvm": ("role",),
    "azure_container": ("python", "subscription", "resource_group", "identity"),
    "azure_job": ("python", "subscription", "resource_group", "environment", "identity", "profile"),
    "cloud_run": ("python", "project", "service_account"),
    "skypilot": ("python", "command", "setup"),
}
"""Options of each platform beside the common ones. Images of AWS name the interpreter themselves."""


@dataclass(frozen=True)
class Account:
    """What the file says about an account with a provider."""

    platform: str
    file: str
    """The file in which it stands, or would stand."""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def lifetime_s(self) -> float | None:
        """The time limit of members; None for that of the offer."""
        return self._duration_s("lifetime")

    @property
    def startup_s(self) -> float | None:
        """How long members take to start with this image; None for what the catalog says, or is assumed."""
        return self._duration_s("startup")

    def region_of(self, offer: Offer) -> str:
        """Return the region of members on an offer; InputError if the table names one that has other prices."""
        given = self.options.get("region", offer.region)
        if given != offer.region:
            raise InputError(
                f"{offer.name} has the price of {offer.region}, but `region` of [{self.platform}] in {self.file} is "
                f"{given}; remove it there, or give an offer of {given}"
            )
        return offer.region

    def _duration_s(self, option: str) -> float | None:
        if option not in self.options:
            return None
        try:
            duration_s = parse_duration_s(self.options[option])
        except UnitError as error:
            raise InputError(f"`{option}` of [{self.platform}] in {self.file}: {error}") from error
        if duration_s <= 0:
            raise InputError(f"`{option}` of [{self.platform}] in {self.file} is {duration_s:g} s; give more than 0 s")
        return duration_s

    def needed(self, option: str, example: str) -> str:
        """Return an option without which members cannot be started."""
        if not self.options.get(option):
            raise InputError(
                f"members on {self.platform} need `{option}`, which {self.file} does not have; write a table "
                f"[{self.platform}] with {option} = {example!r} into it"
            )
        return self.options[option]


def accounts(file: Path) -> dict[str, Account]:
    """Read the accounts in the file of machines by platform; a platform without a table has no options."""
    found = {platform: Account(platform, str(file)) for platform in RENTED_PLATFORMS}
    try:
        tables = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return found
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{file} cannot be read: {quoted(str(error))}; write tables such as [aws_lambda]") from error
    for platform in RENTED_PLATFORMS:
        if platform in tables:
            found[platform] = Account(platform, str(file), _options(file, platform, tables[platform]))
    return found


def _options(file: Path, platform: str, table: Any) -> dict[str, str]:
    if not isinstance(table, dict):
        raise InputError(f"{platform} in {file} is {quoted(str(table))!r}; it must be a table [{platform}]")
    known = (*_COMMON, *_OPTIONS[platform])
    for option, value in table.items():
        if option not in known:
            raise InputError(f"[{platform}] in {file} has {quoted(option)!r}; it may have {', '.join(known)}")
        if not isinstance(value, str) or not value:
            raise InputError(f"`{option}` of [{platform}] in {file} is {quoted(str(value))!r}; it must be a text")
    return table
