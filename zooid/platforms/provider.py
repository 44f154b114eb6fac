"""What a provider of functions, containers or machines must offer for members, and what each member is started with."""

import base64
import json
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit
from zooid.platforms.programs import container_program

START_VARIABLE = "ZOOID_START"
"""The variable that holds the packed program of a member. Providers allow 32 KB for one; this takes half of that."""
_LOAD = (
    "import base64, os, zlib; "
    f"exec(compile(zlib.decompress(base64.b64decode(os.environ.pop('{START_VARIABLE}'))), 'zooid', 'exec'))"
)
_NOT_IN_NAMES = re.compile("[^a-z0-9]+")


@dataclass(frozen=True)
class MemberOrder:
    """A member that a provider is to start."""

    run: str
    title: str
    """The name of the member among all members of its run."""
    offer: Offer
    """The size that the member gets, and its price."""
    order: dict[str, Any]
    """What the program in the container needs to know. It holds no secret."""
    lifetime_s: float | None
    """The time after which the provider ends the member; None if it may run for any time."""

    @property
    def resource(self) -> str:
        """Name of whatever the provider makes for this member alone."""
        return resource_name(self.run, self.title)

    @property
    def program(self) -> str:
        """The first program of the member, with its order."""
        return f"{container_program()}\nrun_container({json.dumps(self.order)!r})\n"

    @property
    def packed_program(self) -> str:
        """The first program of the member, in the characters that every environment variable may have."""
        return base64.b64encode(zlib.compress(self.program.encode(), 9)).decode()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the container must have beside those of its image."""
        return {START_VARIABLE: self.packed_program}


def start_command(python: str = "python3") -> list[str]:
    """Return the command of a container that runs a member: its image needs Python and the member's packages."""
    return [python, "-c", _LOAD]


def resource_name(run: str, title: str) -> str:
    """Return a name that every provider allows: lower-case letters, digits and hyphens.

    >>> resource_name("5f2c9a1e", "000000.r0s1")
    'zooid-5f2c9a1e-000000-r0s1'
    """
    return "zooid-" + "-".join(_NOT_IN_NAMES.sub("-", part.lower()) for part in (run, title))


class Provider(Protocol):
    """An account with a provider, in one region. Each method makes one request or a few, and may be slow.

    Methods raise ZooidError, with what to do, if the provider cannot be reached or refuses. They are called from
    several threads.
    """

    def check(self, orders: Collection[MemberOrder]) -> None:
        """Raise InputError for members that can never start here, such as those beyond a quota, before any is started.

        What all members need, such as the code of a function, is made here.
        """

    def start(self, order: MemberOrder) -> None:
        """Start a member. A title that was started before is not started again, even if this call is repeated."""

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        """Return None for each of these members that runs or is being started, or how it ended as far as is known.

        `billed_s` of an exit says for how long the provider bills the member. Unknown titles are missing. This is
        called once more right after `end`, since some providers only know then for how long a member is billed.
        """

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        """End members by force if they still run, and remove all that was made for them. Any may be gone already.

        Returns the titles of those that cannot be ended now.
        """

    def num_free(self, offer: Offer) -> int | None:
        """Return how many more members quotas allow now; None if the provider names no limit."""

    def close(self) -> None:
        """Close connections, and remove what `check` has made if no other run can need it. Members live on."""
