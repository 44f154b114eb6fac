"""What to tell whoever asks for a fleet that does not exist: which limit binds, and the least change that helps."""

import math
from typing import Literal, TypeAlias

from zooid.core.records import Record
from zooid.core.units import format_duration, format_usd

Limit: TypeAlias = Literal["deadline", "budget", "quota", "kinds", "least_samples"]


class Change(Record, frozen=True, kw_only=True):
    """One limit, and the nearest value at which there is a fleet."""

    limit: Limit
    vm: str = ""
    """Whose quota or least local batch it is."""
    given: float
    needed: float

    def __str__(self) -> str:
        match self.limit:
            case "deadline":
                return f"allow {_up(self.needed)} s instead of {format_duration(self.given)}"
            case "budget":
                return f"allow ${_up(self.needed)} instead of {format_usd(self.given)}"
            case "quota":
                return f"raise the quota of {self.vm} from {self.given:.0f} to {self.needed:.0f}"
            case "kinds":
                return f"let {self.needed:.0f} types be mixed instead of {self.given:.0f}"
            case "least_samples":
                return f"allow local batches of {self.needed:.0f} on {self.vm} instead of at least {self.given:.0f}"


class Shortfall(Record, frozen=True, kw_only=True):
    """Why there is no fleet."""

    binds: tuple[Literal["deadline", "budget", "batch"], ...]
    """The limits that cannot be met. `batch`: no machines hold it."""
    is_joint: bool = False
    """Each of them can be met, but not all by one fleet."""
    changes: tuple[Change, ...]
    """Each of them alone is enough, unless all are needed."""
    needs_all: bool = False

    def __str__(self) -> str:
        said = {
            ("deadline",): "no fleet ends in time",
            ("budget",): "no fleet is within the budget",
            ("deadline", "budget"): "fleets that end in time are beyond the budget"
            if self.is_joint
            else "no fleet ends in time, and none is within the budget",
            ("batch",): "no fleet can hold the batch",
        }[self.binds]
        joined = (" and " if self.needs_all else ", or ").join(str(change) for change in self.changes)
        return f"{said}; {joined or 'no change of a single limit helps'}"


def _up(value: float) -> str:
    """Four digits, never below the value: what a user copies from the message is enough."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    number = math.ceil(value / unit)
    while True:
        text = f"{number * unit:.12f}".rstrip("0").rstrip(".")
        if float(text) >= value:
            return text
        number += 1
