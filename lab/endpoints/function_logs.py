"""The logs of the Lambda endpoint, as CloudWatch Logs keeps them: groups with a stream for each environment."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.endpoints.aws_shapes import Refused

_PREFIX = "/aws/lambda/"
_PAGE = 10_000
_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)
"""Some of the times for which lines may be kept."""


@dataclass
class _Group:
    """A log group."""

    tags: dict[str, str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    days: int | None = None


class FunctionLogs:
    """Log groups, which the user makes: the role of members may only write into them."""

    def __init__(self, delay_s: float = 0.3) -> None:
        """Lines can be read `delay_s` after they were written."""
        self._delay_s = delay_s
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()
        self._num_lines = 0

    def groups(self) -> list[str]:
        with self._lock:
            return list(self._groups)

    def writer(self, function: str) -> Callable[[str, str], None]:
        """Return how to write a line of a function into one of its streams."""

        def write(stream: str, line: str) -> None:
            with self._lock:
                group = self._groups.get(f"{_PREFIX}{function}")
                if group is not None:
                    self._num_lines += 1
                    written = {"logStreamName": stream, "timestamp": int(1000 * time.time()), "message": line}
                    group.lines.append({**written, "eventId": f"{self._num_lines:056d}"})

        return write

    def do(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """Answer a request, whose shape was checked."""
        by_operation: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateLogGroup": self._create,
            "PutRetentionPolicy": self._retain,
            "DeleteLogGroup": self._delete,
            "DescribeLogGroups": self._describe,
            "FilterLogEvents": self._filter,
        }
        if operation not in by_operation:
            raise Refused("ServiceUnavailableException", 500, f"the laboratory has no {operation}")
        with self._lock:
            return by_operation[operation](given)

    def _create(self, given: dict[str, Any]) -> dict[str, Any]:
        if given["logGroupName"] in self._groups:
            raise Refused("ResourceAlreadyExistsException", 400, "The specified log group already exists")
        self._groups[given["logGroupName"]] = _Group(given.get("tags", {}))
        return {}

    def _named(self, given: dict[str, Any]) -> _Group:
        if given["logGroupName"] not in self._groups:
            raise Refused("ResourceNotFoundException", 400, "The specified log group does not exist.")
        return self._groups[given["logGroupName"]]

    def _retain(self, given: dict[str, Any]) -> dict[str, Any]:
        if given["retentionInDays"] not in _DAYS:
            raise Refused("InvalidParameterException", 400, f"retentionInDays must be one of {_DAYS}")
        self._named(given).days = given["retentionInDays"]
        return {}

    def _delete(self, given: dict[str, Any]) -> dict[str, Any]:
        self._named(given)
        del self._groups[given["logGroupName"]]
        return {}

    def _describe(self, given: dict[str, Any]) -> dict[str, Any]:
        prefix = given.get("logGroupNamePrefix", "")
        return {"logGroups": [{"logGroupName": name} for name in sorted(self._groups) if name.startswith(prefix)]}

    def _filter(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return lines in the order in which they were written; the token of a page is the number of lines before."""
        readable_ms = 1000 * (time.time() - self._delay_s)
        since_ms = given.get("startTime", 0)
        lines = [line for line in self._named(given).lines if since_ms <= line["timestamp"] <= readable_ms]
        first = int(given.get("nextToken", "0"))
        last = first + given.get("limit", _PAGE)
        page = {"events": lines[first:last], "searchedLogStreams": []}
        return page if last >= len(lines) else {**page, "nextToken": str(last)}
