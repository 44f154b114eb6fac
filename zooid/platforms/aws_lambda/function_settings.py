"""The settings of a Lambda function, and the name that follows from them."""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError
from zooid.platforms.provider import MemberOrder, resource_name

MIB = 2**20
MAX_TIMEOUT_S = 900
_TMP_MIB = 512
"""The size of /tmp that costs nothing. Members need little of it: the code of the run, and what they cache."""
_MAX_NAME = 64
EXAMPLE_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/zooid:1"
EXAMPLE_ROLE = "arn:aws:iam::123456789012:role/zooid-member"
_IMAGE = re.compile(
    r"[0-9]{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/[a-z0-9._/-]+(?::[\w.-]+|@sha256:\w{64})"
)
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+")
_LOG_GROUP = "/aws/lambda/"


@dataclass(frozen=True)
class FunctionSettings:
    """What a function is made with. Members of one run that have the same settings share a function."""

    run: str
    image: str
    role: str
    memory_mib: int
    timeout_s: int

    @classmethod
    def of(cls, account: Account, order: MemberOrder) -> "FunctionSettings":
        image, role = account.needed("image", EXAMPLE_IMAGE), account.needed("role", EXAMPLE_ROLE)
        region = order.offer.region
        where = f"of [{account.platform}] in {account.file}"
        match = _IMAGE.fullmatch(image)
        if match is None:
            raise InputError(
                f"`image` {where} is {image!r}; it must be an image in Amazon ECR with its tag, such as {EXAMPLE_IMAGE}"
            )
        if match[1] != region:
            raise InputError(
                f"`image` {where} is in {match[1]}, but {order.offer.name} is in {region}, and functions start only "
                f"from images of their own region; push the image to {region} as well, and name it there"
            )
        if _ROLE.fullmatch(role) is None:
            raise InputError(f"`role` {where} is {role!r}; it must be the ARN of a role, such as {EXAMPLE_ROLE}")
        lifetime_s = MAX_TIMEOUT_S if order.lifetime_s is None else order.lifetime_s
        return cls(
            run=order.run,
            image=image,
            role=role,
            memory_mib=order.offer.memory_bytes // MIB,
            timeout_s=min(MAX_TIMEOUT_S, math.ceil(lifetime_s)),
        )

    @property
    def name(self) -> str:
        """The name of the function. It tells the run, so that whoever cleans up finds all functions of a run."""
        text = json.dumps([self.image, self.role, self.timeout_s])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name_prefix(self.run)}{self.memory_mib}-{digest}"
        if len(name) > _MAX_NAME:
            raise InputError(
                f"the function of the run {self.run} would be named {name}; Lambda allows {_MAX_NAME} letters"
            )
        return name

    @property
    def tags(self) -> dict[str, str]:
        return {"zooid": "member", "zooid-run": self.run}

    def request(self) -> dict[str, Any]:
        """Return the parameters with which the function is created."""
        return {
            "FunctionName": self.name,
            "PackageType": "Image",
            "Code": {"ImageUri": self.image},
            "Role": self.role,
            "Architectures": ["x86_64"],
            "MemorySize": self.memory_mib,
            "Timeout": self.timeout_s,
            "EphemeralStorage": {"Size": _TMP_MIB},
            "Description": f"members of the zooid run {self.run}; removed at its end",
            "Tags": self.tags,
        }


def name_prefix(run: str) -> str:
    """Return how the names of a run's functions begin."""
    return f"{resource_name(run, '').rstrip('-')}-"


def is_function_of(run: str, name: str) -> bool:
    """Whether a function has a name that zooid gives for this run, and not for one whose name only begins alike.

    >>> is_function_of("5f2c", "zooid-5f2c-2048-0a1b2c3d"), is_function_of("5f", "zooid-5f2c-2048-0a1b2c3d")
    (True, False)
    """
    return re.fullmatch(re.escape(name_prefix(run)) + "[0-9]+-[0-9a-f]{8}", name) is not None


def log_group_of(name: str) -> str:
    """Return the group in which Lambda logs what a function does."""
    return f"{_LOG_GROUP}{name}"


def function_of_group(log_group: str) -> str:
    return log_group.removeprefix(_LOG_GROUP)
