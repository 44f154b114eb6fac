"""Places of members that the user's own settings name.

Whoever may write to a run's folder can write a handle there, and zooid would run what that handle says: an interpreter
and a configuration for ssh, or the address of a Ray cluster, whose answers Ray unpickles. So a handle is followed only
to a place that this user has named, or that only ssh's own configuration decides about.
"""

import logging
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from zooid.core.resources.offer import RENTED_PLATFORMS
from zooid.core.runs.member_records import MemberHandle
from zooid.core.text import quoted
from zooid.platforms.provider_platform import STORE, WHERE
from zooid.platforms.slurm import Cluster
from zooid.platforms.ssh import SshMachine

logger = logging.getLogger(__name__)

_BARE_HOST = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9._][A-Za-z0-9._-]*")
"""A host that ssh looks up in the user's own configuration, and that cannot be taken for an option."""
_CLUSTER_NAME = "cluster"
"""Key of the name that a Slurm cluster gives itself, with which the platform compares it."""


class RayAddress(NamedTuple):
    """The address of a Ray cluster."""

    address: str


class ProviderPlace(NamedTuple):
    """An account with a provider and a region, as its platform names them."""

    where: str


KnownPlace = SshMachine | Cluster | RayAddress | ProviderPlace


def place_in(handle: MemberHandle) -> KnownPlace | None:
    """Return the place that a handle names on another machine; None if it does not name one as its platform would."""
    place = dict(handle.place)
    if handle.platform == "slurm" and _CLUSTER_NAME in place:
        del place[_CLUSTER_NAME]
        return Cluster(**place) if place.keys() == set(Cluster._fields) else None
    if handle.platform == "ssh" and place.keys() == set(SshMachine._fields):
        return SshMachine(**place)
    if handle.platform == "ray" and place.keys() == set(RayAddress._fields):
        return RayAddress(**place)
    if handle.platform in (*RENTED_PLATFORMS, "kubernetes") and place.keys() == {WHERE, STORE}:
        return ProviderPlace(place[WHERE])
    return None


def is_known(place: KnownPlace, listed: Collection[KnownPlace]) -> bool:
    """Whether zooid may connect to a place; `listed` are those that the user's own settings name.

    >>> is_known(SshMachine("gpu1"), []), is_known(SshMachine("gpu1", python="/tmp/evil"), [])
    (True, False)
    """
    if any(type(place) is type(known) and place == known for known in listed):
        return True
    match place:
        case SshMachine():
            return place == SshMachine(place.host) and _BARE_HOST.fullmatch(place.host) is not None
        case Cluster():
            is_here = not place.login
            return not place.config and (is_here or _BARE_HOST.fullmatch(place.login) is not None)
        case RayAddress():
            return place.address == "auto"
        case ProviderPlace():  # whom zooid asks there, and with which credentials, the user's own settings say
            return True


def in_words(handle: MemberHandle) -> str:
    """Name a member and its place.

    >>> place = {"address": "ray://head:10001"}
    >>> in_words(MemberHandle(run="r", member="r0s0", platform="ray", offer="ray", launched_at_s=0.0, place=place))
    'r0s0 on ray (address ray://head:10001)'
    """
    fields = ", ".join(f"{name} {value}" for name, value in sorted(handle.place.items()) if value)
    return quoted(f"{handle.member} on {handle.platform} ({fields})")


class KnownPlaces:
    """Decides which handles are followed, and warns once about each place that is not.

    A handle of this machine is always followed, because that opens no connection.
    """

    def __init__(self, listed: Callable[[], Collection[KnownPlace]]) -> None:
        """`listed` returns the places that the user's own settings name; it is called when it is first needed."""
        self._listed = listed
        self._known: Collection[KnownPlace] | None = None
        self._warned: set[tuple[str, KnownPlace | None]] = set()

    def include(self, handle: MemberHandle) -> bool:
        """Whether this user has named the place of a handle."""
        if handle.platform == "local":
            return True
        place = place_in(handle)
        if place is None:
            return False
        if self._known is None:
            self._known = self._listed()
        return is_known(place, self._known)

    def follow(self, handle: MemberHandle) -> bool:
        """Whether to look for a member where its handle says; otherwise warn, once for each place."""
        if self.include(handle):
            return True
        key = (handle.platform, place_in(handle))
        if key not in self._warned:
            self._warned.add(key)
            why = "which is malformed" if place_in(handle) is None else "which the file of machines does not name"
            logger.warning("%s is not looked for at its place, %s", in_words(handle), why)
        return False
