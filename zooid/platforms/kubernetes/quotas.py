"""How many more members the quotas of a namespace allow."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_UNITS = {
    "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9.]+)(?:[eE]([0-9+-]+))?([a-zA-Z]*)")
_COUNTS = ("pods", "count/pods", "count/jobs.batch")
"""Resources of which a member needs one: its pod, or its Job."""


def quantity(text: str) -> float:
    """Read a quantity of Kubernetes.

    >>> quantity("1500m"), quantity("2Gi"), quantity("3e2")
    (1.5, 2147483648.0, 300.0)
    """
    found = _QUANTITY.fullmatch(text)
    if found is None or found[3] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity")
    return float(found[1]) * 10.0 ** int(found[2] or 0) * _UNITS[found[3]]


class QuotaRoom(NamedTuple):
    """What the tightest quota allows."""

    num_members: int
    words: str


def allowance(quotas: Iterable[Mapping[str, Any]], size: Mapping[str, str], *, in_use: bool) -> QuotaRoom | None:
    """Return how many members of a size fit into the tightest quota; None without a quota.

    With `in_use`, what others have taken counts. Quotas for some pods only, such as those of one priority, are left to
    the cluster.
    """
    needs = _needs(size)
    tightest: QuotaRoom | None = None
    for quota in quotas:
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        for resource, hard in (status.get("hard") or spec.get("hard") or {}).items():
            if resource not in needs:
                continue
            used = (status.get("used") or {}).get(resource, "0") if in_use else "0"
            num = max(0, int((quantity(str(hard)) - quantity(str(used))) / needs[resource] + 1e-9))
            if tightest is None or num < tightest.num_members:
                tightest = QuotaRoom(num, f"{quota.get('metadata', {}).get('name', '')} allows {resource} of {hard}")
    return tightest


def _needs(size: Mapping[str, str]) -> dict[str, float]:
    """Return what one member takes of every resource that a quota may limit."""
    needs = dict.fromkeys(_COUNTS, 1.0)
    for resource, amount in size.items():
        needs |= dict.fromkeys((f"requests.{resource}", f"limits.{resource}"), quantity(amount))
        if "/" not in resource:
            needs[resource] = quantity(amount)
    return needs
