"""Images of MicroVMs: one for each size, made by the user beforehand, and checked before a member starts from it."""

import re
from dataclasses import dataclass
from typing import Any

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.entry import microvm_hooks

_MIB = 2**20
_CEILING = 4
"""A MicroVM has four times the memory and the cores that its image names, and nobody can choose less."""
_SIZES_MIB = (512, 1024, 2048, 4096, 8192)
"""The sizes that an image may name."""
_ARN = re.compile("arn:aws[a-z-]*:lambda:([a-z0-9-]+):([0-9]{12}):microvm-image:([a-zA-Z0-9-_]+)")
_EXAMPLE = "arn:aws:lambda:us-east-1:123456789012:microvm-image:zooid"
_USABLE = ("CREATED", "UPDATING", "UPDATED", "UPDATE_FAILED")
"""States of an image that may have an active version."""


@dataclass(frozen=True)
class ImageFamily:
    """The images of an account: their common name, to which each adds the memory of its MicroVMs in MiB."""

    arn: str
    region: str
    account_id: str

    @classmethod
    def of(cls, account: Account) -> "ImageFamily":
        given = account.needed("image", _EXAMPLE)
        match = _ARN.fullmatch(given)
        if match is None:
            raise InputError(
                f"`image` of [{account.platform}] in {account.file} is {given!r}; it must be the ARN of a MicroVM "
                f"image without the size at its end, such as {_EXAMPLE} for the image zooid-8192"
            )
        region = account.options.get("region", match[1])
        if region != match[1]:
            raise InputError(f"`region` in {account.file} is {region}, but the image is in {match[1]}; give one region")
        return cls(given, match[1], match[2])

    @property
    def where(self) -> str:
        """The account and region, as handles of members name them."""
        return f"{self.account_id}/{self.region}"

    def image_for(self, offer: Offer) -> str:
        """Return the ARN of the image whose MicroVMs have the memory of this offer."""
        if offer.region != self.region:
            raise InputError(
                f"{offer.name} is in {offer.region}, but the image is in {self.region}; make an image in {offer.region}"
            )
        return f"{self.arn}-{offer.memory_bytes // _MIB}"


def check_image(client: Any, arn: str, offer: Offer) -> None:
    """Check that an image exists, has the size of the offer, and starts members when it is told to."""
    memory_mib = offer.memory_bytes // _MIB
    named_mib = memory_mib // _CEILING
    if named_mib not in _SIZES_MIB:
        sizes = ", ".join(str(_CEILING * size) for size in _SIZES_MIB)
        raise InputError(f"{offer.name} has {memory_mib} MiB; MicroVMs have {sizes} MiB")
    advice = f"make it from the recipe in images/aws_microvm, with minimumMemoryInMiB={named_mib}"
    try:
        image = client.get_microvm_image(imageIdentifier=arn)
    except client.exceptions.ResourceNotFoundException as error:
        raise InputError(f"there is no MicroVM image {arn}; {advice}") from error
    number = image.get("latestActiveImageVersion")
    if image["state"] not in _USABLE or number is None:
        raise InputError(f"the MicroVM image {arn} is {image['state']} and has no active version; {advice}")
    version = client.get_microvm_image_version(imageIdentifier=arn, imageVersion=number)
    found = [resources["minimumMemoryInMiB"] for resources in version.get("resources", [])]
    if found != [named_mib]:
        raise InputError(f"version {number} of {arn} has minimumMemoryInMiB={found or 'none'}; {advice}")
    hooks = version.get("hooks", {})
    enabled = [name for name, value in hooks.get("microvmHooks", {}).items() if value == "ENABLED"]
    if hooks.get("port") != microvm_hooks.PORT or not {"run", "terminate"} <= set(enabled):
        raise InputError(
            f"version {number} of {arn} has the hooks {', '.join(enabled) or 'none'} at port {hooks.get('port')}; it "
            f"needs `run` and `terminate` at {microvm_hooks.PORT}: {advice}"
        )
