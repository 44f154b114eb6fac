"""The log of a function, as Lambda writes it, tells how members ended and what is billed."""

import json
from collections.abc import Sequence

from zooid.entry.attendant import ALREADY_STARTED
from zooid.platforms.aws_lambda.invocation_log import InvocationLog

MIB = 2**20
TITLE = "000000.r0s1"


def report(request: str, end: str = "") -> str:
    return (
        f"REPORT RequestId: {request}\tDuration: 1500.00 ms\tBilled Duration: 1700 ms\tMemory Size: 2048 MB\t"
        f"Max Memory Used: 300 MB\tInit Duration: 200.00 ms\t{end}\n"
    )


def said(what: str, request: str, **more: int) -> str:
    return json.dumps({"zooid": what, "title": TITLE, "request": request, **more}) + "\n"


def whole(request: str, status: int = 0) -> list[str]:
    return [
        f"START RequestId: {request} Version: $LATEST\n",
        said("began", request, ends_at_ms=900_000),
        said("ended", request, status=status),
        f"END RequestId: {request}\n",
        report(request),
    ]


class Lines:
    """Lines of streams as CloudWatch Logs returns them."""

    def __init__(self) -> None:
        self.log = InvocationLog()
        self._count = 0

    def arrive(self, stream: str, lines: Sequence[str]) -> None:
        for line in lines:
            self._count += 1
            event = {"eventId": str(self._count), "timestamp": self._count, "logStreamName": stream, "message": line}
            self.log.take([event, event])


def test_a_member_that_has_ended_tells_its_status_and_what_is_billed() -> None:
    lines = Lines()
    lines.arrive("a", whole("1", status=7)[:-1])
    assert [each.report for each in lines.log.of(TITLE)] == [None]
    lines.arrive("a", whole("1")[-1:])
    assert not lines.log.has_running
    [invocation] = lines.log.of(TITLE)
    assert invocation.ends_at_s == 900.0
    assert invocation.report is not None
    ended = invocation.exit(invocation.report.billed_s)
    assert (ended.status, ended.ran_s, ended.billed_s) == (7, 1.5, 1.7)


def test_an_event_that_arrives_twice_is_two_invocations_of_one_request() -> None:
    """Whoever finds the start claimed is billed, and says nothing about the member."""
    lines = Lines()
    first, second = whole("1"), whole("1")
    lines.arrive("a", first[:2])
    lines.arrive("b", [*second[:2], f"{TITLE} {ALREADY_STARTED}\n", *second[2:]])
    assert [(each.is_spare, each.report is None) for each in lines.log.of(TITLE)] == [(False, True), (True, False)]
    lines.arrive("a", first[2:])
    assert [(each.is_spare, each.report is None) for each in lines.log.of(TITLE)] == [(False, False), (True, False)]


def test_an_environment_may_get_both() -> None:
    lines = Lines()
    lines.arrive("a", whole("1"))
    lines.arrive("a", [*whole("1")[:2], f"{TITLE} {ALREADY_STARTED}\n", *whole("1")[2:]])
    assert [each.is_spare for each in lines.log.of(TITLE)] == [False, True]


def test_one_that_never_reaches_its_handler_is_known_by_its_request() -> None:
    lines = Lines()
    lines.log.name("1", TITLE)
    lines.arrive(
        "a", ["START RequestId: 1 Version: $LATEST\n", "killed\n", report("1", "Status: error\tError Type: X")]
    )
    [invocation] = lines.log.of(TITLE)
    assert str(invocation.exit(1.7)) == "its function has failed: X: killed"


def test_time_and_memory_that_are_over_are_told() -> None:
    lines = Lines()
    late = ["START RequestId: 1 Version: $LATEST\n", said("began", "1"), "… 1 Task timed out after 20.00 seconds\n"]
    lines.arrive("a", [*late, report("1", "Status: timeout")])
    large = ["START RequestId: 2 Version: $LATEST\n", said("began", "2")]
    lines.arrive("b", [*large, report("2", "Status: error\tError Type: Runtime.OutOfMemory")])
    over, beyond = (each.exit(1.7) for each in lines.log.of(TITLE))
    assert str(over) == "was ended, because its 20 s were over"
    assert (beyond.exceeded_bytes, beyond.peak_bytes) == (2048 * MIB, 300 * MIB)


def test_a_report_that_cannot_be_read_is_no_end() -> None:
    lines = Lines()
    lines.arrive("a", [*whole("1")[:-1], "REPORT RequestId: 1\tDuration: ? ms\n"])
    assert lines.log.has_running
