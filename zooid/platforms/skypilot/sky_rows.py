"""Answers of SkyPilot, which it prints as JSON among other lines. Only the fields that count are read."""

import re
from typing import TypeVar

import msgspec

from zooid.core.errors import ZooidError
from zooid.core.text import quoted

_Answer = TypeVar("_Answer")

_REQUEST_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_FAILED_REQUESTS = ("FAILED", "CANCELLED")
_FAILED_JOBS = ("FAILED", "FAILED_SETUP", "FAILED_DRIVER", "CANCELLED")


class UnreadableAnswer(ZooidError):
    """SkyPilot has printed something that this version of zooid does not understand."""


class ClusterRow(msgspec.Struct, frozen=True):
    """A cluster that SkyPilot has a record of."""

    name: str
    status: str
    """INIT, PENDING, UP, AUTOSTOPPING or STOPPED."""


class RequestRow(msgspec.Struct, frozen=True):
    """A request to the server of SkyPilot."""

    request_id: str
    name: str
    """What was asked for, such as `sky.launch`."""
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or CANCELLED."""

    @property
    def is_launch(self) -> bool:
        return self.name == "sky.launch"

    @property
    def has_failed(self) -> bool:
        return self.status in _FAILED_REQUESTS

    @property
    def has_succeeded(self) -> bool:
        return self.status == "SUCCEEDED"


class TaskRow(msgspec.Struct, frozen=True):
    """A task that a cluster was given."""

    job_id: int
    status: str
    """INIT, PENDING, SETTING_UP, RUNNING, SUCCEEDED, FAILED, FAILED_SETUP, FAILED_DRIVER or CANCELLED."""

    @property
    def has_failed(self) -> bool:
        return self.status in _FAILED_JOBS

    @property
    def has_ended(self) -> bool:
        return self.has_failed or self.status == "SUCCEEDED"


class CostRow(msgspec.Struct, frozen=True):
    """For how long a cluster was up."""

    name: str
    duration: float
    """Seconds from the request for its machine to the end of the machine, or until now."""


def cluster_rows(text: str) -> list[ClusterRow]:
    """Read the answer to `sky status`."""
    return _read(text, list[ClusterRow])


def request_rows(text: str) -> list[RequestRow]:
    """Read the answer to `sky api status`."""
    return _read(text, list[RequestRow])


def job_rows(text: str) -> dict[str, list[TaskRow]]:
    """Read the answer to `sky queue`: the tasks of those clusters that could be asked."""
    return _read(text, dict[str, list[TaskRow]])


def cost_rows(text: str) -> list[CostRow]:
    """Read the answer to `sky cost-report`."""
    return _read(text, list[CostRow])


def request_id(text: str) -> str:
    """Return the id that `sky launch --async` has given to its request."""
    found = _REQUEST_ID.search(text)
    if found is None:
        raise UnreadableAnswer(f"`sky launch` names no request: {quoted(text)}; zooid knows SkyPilot 0.14.1")
    return found[0]


def _read(text: str, kind: type[_Answer]) -> _Answer:
    """Read the JSON that begins a line and goes on to the end of a text."""
    why = "it has no JSON"
    for found in re.finditer(r"^[\[{]", text, re.MULTILINE):
        try:
            return msgspec.json.decode(text[found.start() :].encode(), type=kind)
        except msgspec.DecodeError as error:
            why = str(error)
    raise UnreadableAnswer(f"SkyPilot's answer is not understood ({quoted(why)}): {quoted(text)}; zooid knows 0.14.1")
