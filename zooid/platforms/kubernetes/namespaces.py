"""What the file of machines says about a namespace of a cluster, and about the pods of members there."""

import re
from dataclasses import dataclass
from typing import Any

from zooid.core.errors import InputError

_PAIR = re.compile(r"([^\s=:,]+)(?:=([^\s=:,]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?")


@dataclass(frozen=True)
class Namespace:
    """Options of a table [kubernetes.NAME]."""

    name: str
    """Name of the offer, such as `kubernetes.lab`."""
    context: str = ""
    """Context in the kubeconfig; by default the current one, or the cluster in whose pod this process runs."""
    config: str = ""
    """Path of the kubeconfig; by default the one that kubectl uses."""
    namespace: str = ""
    """The namespace in which members run. Without one, the namespace of the context is used."""
    image: str = ""
    python: str = "python3"
    service_account: str = ""
    """Service account of the pods; by default the namespace's own."""
    secret: str = ""
    """A Secret whose keys are variables of the members, such as the credentials of their store."""
    node_selector: str = ""
    """Labels that a node must have, as in `pool=spot,gpu=yes`."""
    tolerations: str = ""
    """Taints that members tolerate, as in `spot=true:NoSchedule,dedicated`."""
    user: str = ""
    """Number of the user as whom members run; by default that of the image."""

    def needed_image(self) -> str:
        if not self.image:
            raise InputError(
                f"members on {self.name} need `image`, which its table [{self.name}] in the file of machines does not "
                "have; give an image with Python and the members' packages"
            )
        return self.image

    @property
    def selected_labels(self) -> dict[str, str]:
        labels = {}
        for name, value, effect in self._pairs("node_selector", "pool=spot,gpu=yes"):
            if value is None or effect:
                raise self._malformed("node_selector", "pool=spot,gpu=yes")
            labels[name] = value
        return labels

    @property
    def tolerated_taints(self) -> list[dict[str, Any]]:
        taints = []
        for name, value, effect in self._pairs("tolerations", "spot=true:NoSchedule,dedicated"):
            taint = {"key": name, "operator": "Exists"} if value is None else {"key": name, "value": value}
            taints.append(taint | ({"effect": effect} if effect else {}))
        return taints

    @property
    def user_number(self) -> int | None:
        if not self.user:
            return None
        if not self.user.isdecimal():
            raise self._malformed("user", "1000")
        return int(self.user)

    def _pairs(self, option: str, example: str) -> list[tuple[str, str | None, str | None]]:
        parts = [part.strip() for part in getattr(self, option).split(",") if part.strip()]
        found = [_PAIR.fullmatch(part) for part in parts]
        pairs = [(match[1], match[2], match[3]) for match in found if match is not None]
        if len(pairs) < len(parts):
            raise self._malformed(option, example)
        return pairs

    def _malformed(self, option: str, example: str) -> InputError:
        return InputError(f"`{option}` of [{self.name}] is {getattr(self, option)!r}; give it as in {example!r}")
