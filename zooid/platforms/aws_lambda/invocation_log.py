"""What the log of a function tells about its invocations: which member each was, how it ended, and its bill.

Lambda lists no running invocations. But it writes lines around each, and the handler writes two more:

    START RequestId: 8f5c… Version: $LATEST
    {"zooid": "began", "title": "000000.r0s1", "request": "8f5c…", "ends_at_ms": 1763510400000}
    {"zooid": "ended", "title": "000000.r0s1", "request": "8f5c…", "status": 0}
    END RequestId: 8f5c…
    REPORT RequestId: 8f5c… Duration: … ms Billed Duration: … ms Memory Size: … MB Max Memory Used: … MB …

An execution environment runs one invocation at a time, and has a log stream of its own. So every other line belongs to
the invocation that was started last in its stream.
"""

import json
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zooid.core.runs.member_records import Exit
from zooid.entry.attendant import ALREADY_STARTED

_MIB = 2**20
_START = re.compile(r"START RequestId: (\S+)")
_REPORT = re.compile(r"REPORT RequestId: (\S+)")
_TIMED_OUT = re.compile(r"Task timed out after ([0-9.]+) seconds")
_RAN_OUT_OF_MEMORY = "Runtime.OutOfMemory"
_KILLED = "signal: killed"
_MAX_WORDS = 400


@dataclass
class Report:
    """The last line of an invocation."""

    duration_s: float
    billed_s: float
    """The time that is paid for. It includes the initialisation of the environment, if this was its first."""
    memory_bytes: int
    peak_bytes: int
    status: str
    """`timeout` or `error`; empty if the handler has returned."""
    error_type: str

    @classmethod
    def read(cls, line: str) -> "Report | None":
        """Read a line such as `REPORT RequestId: … Duration: 12.3 ms …`; None if it lacks a field."""
        fields = dict(part.split(": ", 1) for part in line.strip().split("\t") if ": " in part)
        try:
            return cls(
                duration_s=float(fields["Duration"].removesuffix(" ms")) / 1000,
                billed_s=float(fields["Billed Duration"].removesuffix(" ms")) / 1000,
                memory_bytes=int(fields["Memory Size"].removesuffix(" MB")) * _MIB,
                peak_bytes=int(fields["Max Memory Used"].removesuffix(" MB")) * _MIB,
                status=fields.get("Status", "").strip(),
                error_type=fields.get("Error Type", "").strip(),
            )
        except (KeyError, ValueError):
            return None


@dataclass
class Invocation:
    """One run of the handler, as far as the log tells."""

    request: str
    """The id of its request, which it shares with another one if its event has arrived twice."""
    title: str = ""
    """The member; empty as long as that is not known."""
    ends_at_s: float | None = None
    """Unix time at which Lambda ends it at the latest."""
    status: int | None = None
    """The exit status of the member's first program."""
    is_spare: bool = False
    """True if another invocation of the same event has started the member. Lambda may deliver an event twice."""
    report: Report | None = None
    timeout_s: float | None = None
    words: str = ""
    """Other lines of the log about this invocation."""

    def exit(self, billed_s: float) -> Exit:
        """Return how the member ended. It is billed for this time, over all invocations for it."""
        report = self.report
        assert report is not None
        ran_s, peak_bytes = report.duration_s, report.peak_bytes
        if report.status == "timeout":
            limit_s = report.duration_s if self.timeout_s is None else self.timeout_s
            reason = f"was ended, because its {limit_s:g} s were over"
            return Exit(-signal.SIGKILL, peak_bytes=peak_bytes, ran_s=ran_s, billed_s=billed_s, reason=reason)
        was_killed = _KILLED in self.words and peak_bytes >= report.memory_bytes
        if report.error_type == _RAN_OUT_OF_MEMORY or was_killed:
            return Exit(
                -signal.SIGKILL,
                exceeded_bytes=report.memory_bytes,
                peak_bytes=peak_bytes,
                ran_s=ran_s,
                billed_s=billed_s,
            )
        if report.status == "error":
            words = " ".join(self.words.split())[-_MAX_WORDS:]
            reason = f"its function has failed: {report.error_type}: {words}"
            return Exit(None, ran_s=ran_s, billed_s=billed_s, reason=reason)
        return Exit(self.status, ran_s=ran_s, billed_s=billed_s)


@dataclass
class InvocationLog:
    """The log of one function, read piece by piece."""

    invocations: list[Invocation] = field(default_factory=list)
    newest_ms: int = 0
    """When the newest line was written."""
    _titles: dict[str, str] = field(default_factory=dict)
    """Members by the requests that have started them, for invocations whose handler is never reached."""
    _seen: dict[str, int] = field(default_factory=dict)
    """Ids of lines, and when each was written. The same lines are read again, since some arrive late."""
    _current: dict[str, Invocation] = field(default_factory=dict)
    """The invocation that was started last in each stream."""

    def take(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take lines as CloudWatch Logs returns them."""
        for event in events:
            if event["eventId"] in self._seen:
                continue
            self._seen[event["eventId"]] = event["timestamp"]
            self.newest_ms = max(self.newest_ms, event["timestamp"])
            self._take_line(event["logStreamName"], event["message"])

    def forget_before(self, at_ms: int) -> None:
        """Forget ids of lines that will not be read again."""
        self._seen = {event: written_ms for event, written_ms in self._seen.items() if written_ms >= at_ms}

    def name(self, request: str, title: str) -> None:
        """Note which member was started by a request."""
        self._titles[request] = title
        for invocation in self.invocations:
            if invocation.request == request:
                invocation.title = title

    def _begin(self, stream: str, request: str) -> Invocation:
        invocation = Invocation(request, self._titles.get(request, ""))
        self.invocations.append(invocation)
        self._current[stream] = invocation
        return invocation

    def _in(self, stream: str, request: str) -> Invocation:
        """Return the invocation of a request in a stream, even if the line of its start has not arrived."""
        current = self._current.get(stream)
        return current if current is not None and current.request == request else self._begin(stream, request)

    def _take_line(self, stream: str, line: str) -> None:
        said = _said(line)
        if match := _START.match(line):
            self._begin(stream, match[1])
        elif match := _REPORT.match(line):
            self._in(stream, match[1]).report = Report.read(line)
        elif said is not None:
            invocation = self._in(stream, str(said.get("request")))
            invocation.title = str(said.get("title"))
            invocation.status = said.get("status")
            if "ends_at_ms" in said:
                invocation.ends_at_s = said["ends_at_ms"] / 1000
        elif stream in self._current and not line.startswith("END RequestId: "):
            invocation = self._current[stream]
            if match := _TIMED_OUT.search(line):
                invocation.timeout_s = float(match[1])
            invocation.is_spare |= ALREADY_STARTED in line
            invocation.words = (invocation.words + line)[-_MAX_WORDS:]

    @property
    def has_running(self) -> bool:
        """Whether an invocation has not ended."""
        return any(each.report is None for each in self.invocations)

    def of(self, title: str) -> list[Invocation]:
        """Return the invocations for a member. There are several if its event has arrived more than once."""
        return [invocation for invocation in self.invocations if invocation.title == title]


def _said(line: str) -> dict[str, Any] | None:
    """Read a line of the handler."""
    if not line.startswith('{"zooid": '):
        return None
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return said
