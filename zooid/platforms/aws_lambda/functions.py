"""Members as AWS Lambda functions: each is one asynchronous invocation, for 15 minutes at most.

Lambda neither lists nor ends invocations. So how a member is doing is read from the log of its function, and it ends
when it is asked to in its store, or when its time is over. Its event may arrive twice; then the claim on its start, in
the store of its run, makes the second one do nothing.

The functions of a run are made when they are first needed, and removed with their logs when none of its members runs
any more and the platform is closed.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from zooid.catalog.provider_accounts import Account
from zooid.core.errors import InputError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit
from zooid.core.units import format_duration
from zooid.platforms.aws_lambda.function_requests import FunctionClients, Refused, asking, function_clients
from zooid.platforms.aws_lambda.function_settings import (
    FunctionSettings,
    function_of_group,
    is_function_of,
    log_group_of,
    name_prefix,
)
from zooid.platforms.aws_lambda.invocation_log import Invocation, InvocationLog
from zooid.platforms.provider import MemberOrder
from zooid.platforms.provider_platform import ProviderPlatform

logger = logging.getLogger(__name__)

NAME = "aws_lambda"
_MAX_EVENT_AGE_S = 300
"""Lambda drops an event that has waited in its queue for so long, because too many functions run already."""
_LOG_DELAY_S = 60.0
"""How late a line may appear in the log; usually it takes a few seconds."""
_END_S = 20.0
"""How long to wait until the log tells that members have ended."""
_POLL_S = 0.5
_ACTIVE_S = 300
"""How long Lambda may take to prepare the image of a new function; seconds if it is known, and more if it is large."""
_LOG_DAYS = 1
"""Lines of functions that nobody has removed are deleted after this time."""
_PAGE = 10_000
_IMPORTS = ("torch", "numpy.random", "msgspec", "obstore", "safetensors.torch")
"""What every member imports beside zooid. Only OpenBLAS, in numpy, starts threads, and ends them before a fork."""


def function_platform(account: Account, offer_of: Callable[[str], Offer], look_s: float = 2.0) -> ProviderPlatform:
    """Return the platform on the user's account."""

    def open_functions(where: str) -> "LambdaFunctions":
        return LambdaFunctions(account, function_clients(where, account.options.get("endpoint")))

    return ProviderPlatform(NAME, open_functions, account.region_of, offer_of, look_s)


class LambdaFunctions:
    """The functions of an account in one region."""

    def __init__(self, account: Account, clients: FunctionClients) -> None:
        self._account = account
        self._clients = clients
        self._lock = threading.Lock()
        self._logs: dict[str, dict[str, InvocationLog]] = {}
        """The logs of functions, by run and the function's name."""
        self._active: set[str] = set()
        """Functions that are ready for members."""
        self._asked_s: dict[tuple[str, str], float] = {}
        """When a member was started or first asked for, by run and title, on the monotonic clock."""
        self._refused: set[tuple[str, str]] = set()
        """Members that Lambda has refused to start."""
        self._ended: set[tuple[str, str]] = set()
        """Members that have ended, or were given up."""

    def check(self, orders: Collection[MemberOrder]) -> None:
        settings = {FunctionSettings.of(self._account, order) for order in orders}
        num_allowed, num_running = self._num_allowed(), self._num_running()
        if num_running + len(orders) > num_allowed:
            running = f", beside {num_running} of zooid that run already" if num_running else ""
            raise InputError(
                f"{len(orders)} members are to run as functions{running}, but this account may run {num_allowed} at "
                "the same time in this region; give a limit of members, or ask AWS for a higher quota of concurrent "
                "executions"
            )
        for each in settings:
            self._make(each)

    def _num_allowed(self) -> int:
        with asking("the quota of concurrent executions cannot be read"):
            answer = self._clients.functions.get_account_settings()
        return int(answer["AccountLimit"]["UnreservedConcurrentExecutions"])

    def _num_running(self) -> int:
        return len(self._asked_s.keys() - self._ended)

    def _make(self, settings: FunctionSettings) -> None:
        """Make a function and its log, unless they exist, and wait until members can be started."""
        name, functions = settings.name, self._clients.functions
        with self._lock:
            if name in self._active:
                return
            self._logs.setdefault(settings.run, {}).setdefault(name, InvocationLog())  # `close` removes what is made
            self._make_log_group(settings)
            try:
                with asking(f"the function for members with {settings.memory_mib} MiB cannot be made"):
                    functions.create_function(**settings.request())
            except Refused as error:
                if error.code != "ResourceConflictException":  # another process of the run has made it
                    raise InputError(_with_advice(error, settings)) from error
            self._wait_until_active(settings)
            with asking(f"{name} cannot be told to start each member once"):
                functions.put_function_event_invoke_config(
                    FunctionName=name, MaximumRetryAttempts=0, MaximumEventAgeInSeconds=_MAX_EVENT_AGE_S
                )
            self._active.add(name)

    def _make_log_group(self, settings: FunctionSettings) -> None:
        """Make the log of a function, so that members need no permission to make one."""
        group = log_group_of(settings.name)
        try:
            with asking(f"the log {group} cannot be made"):
                self._clients.logs.create_log_group(logGroupName=group, tags=settings.tags)
                self._clients.logs.put_retention_policy(logGroupName=group, retentionInDays=_LOG_DAYS)
        except Refused as error:
            if error.code != "ResourceAlreadyExistsException":
                raise

    def _wait_until_active(self, settings: FunctionSettings) -> None:
        deadline_s = time.monotonic() + _ACTIVE_S
        while True:
            with asking(f"the state of {settings.name} cannot be read"):
                known = self._clients.functions.get_function_configuration(FunctionName=settings.name)
            state = known.get("State")
            if state == "Active":
                return
            if state == "Failed" or time.monotonic() > deadline_s:
                raise InputError(
                    f"Lambda could not prepare the function {settings.name} with the image {settings.image}: "
                    f"{known.get('StateReason') or f'its state is {state} after {_ACTIVE_S} s'}; check the image, and "
                    "that Lambda may read it from the repository"
                )
            time.sleep(_POLL_S)

    def start(self, order: MemberOrder) -> None:
        settings = FunctionSettings.of(self._account, order)
        event = {
            "title": order.title,
            "imports": _IMPORTS,
            "environment": {
                "HOME": "/tmp",  # the home of a function cannot be written to
                "OMP_NUM_THREADS": str(order.order["ticket"]["num_threads"]),  # it counts when numpy is imported
            },
            "program": replace(order, order={**order.order, "forks": True}).packed_program,
        }
        try:
            self._invoke(settings, event)
        except Refused as error:
            if error.code != "ResourceNotFoundException":
                raise
            self._active.discard(settings.name)  # another process has cleaned up
            self._make(settings)
            self._invoke(settings, event)

    def _invoke(self, settings: FunctionSettings, event: Mapping[str, Any]) -> None:
        key = settings.run, str(event["title"])
        if key in self._asked_s:
            return
        self._asked_s[key] = time.monotonic()
        try:
            with asking(f"{key[1]} cannot be started"):
                answer = self._clients.functions.invoke(
                    FunctionName=settings.name, InvocationType="Event", Payload=json.dumps(event).encode()
                )
        except ZooidError as error:
            del self._asked_s[key]
            if isinstance(error, Refused):  # otherwise it may have been accepted, and starts later
                self._refused.add(key)
            raise
        self._refused.discard(key)
        request = answer["ResponseMetadata"]["RequestId"]
        with self._lock:
            self._logs[settings.run][settings.name].name(request, key[1])

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        logs = self._read_logs(run)
        if not logs:
            return {}  # all was removed, since no member was running
        found: dict[str, Exit | None] = {}
        for title in titles:
            if (run, title) in self._refused:
                found[title] = Exit(None, ran_s=0.0, reason="was not started, since Lambda has refused to")
                continue
            since_s = self._asked_s.setdefault((run, title), time.monotonic())
            found[title] = _state([each for log in logs for each in log.of(title)], time.monotonic() - since_s)
            if found[title] is not None:
                self._ended.add((run, title))
        return found

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        deadline_s = time.monotonic() + _END_S
        while True:
            states = self.states(run, titles)
            left = {title for title in titles if title in states and states[title] is None}
            if not left or time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
        for title in left:
            ends_at_s = self._ends_at_s(run, title)
            limit = "its time limit" if ends_at_s is None else format_duration(max(0.0, ends_at_s - time.time()))
            logger.warning("%s does not end when it is asked to; Lambda ends it within %s", title, limit)
        self._ended |= {(run, title) for title in titles if title not in left}
        return left

    def _ends_at_s(self, run: str, title: str) -> float | None:
        invocations = [each for log in self._logs.get(run, {}).values() for each in log.of(title)]
        return max((each.ends_at_s for each in invocations if each.ends_at_s is not None), default=None)

    def num_free(self, offer: Offer) -> int | None:
        return max(0, self._num_allowed() - self._num_running())

    def close(self) -> None:
        for run in list(self._logs):
            try:
                self._remove_if_idle(run)
            except ZooidError as error:
                logger.warning("the functions of the run %s are not removed; zooid clean does it: %s", run, error)
        for client in self._clients:
            client.close()

    def _remove_if_idle(self, run: str) -> None:
        """Remove the functions of a run, if no member runs any more, whoever has started it."""
        logs = self._read_logs(run)
        unended = {title for of_run, title in self._asked_s.keys() - self._ended if of_run == run}
        if any(log.has_running for log in logs) or any(value is None for value in self.states(run, unended).values()):
            return
        for name in self._logs.pop(run):
            self._active.discard(name)
            with asking(f"the function {name} cannot be removed"):
                _unless_gone(self._clients.functions.delete_function, FunctionName=name)
            with asking(f"the log of the function {name} cannot be removed"):
                _unless_gone(self._clients.logs.delete_log_group, logGroupName=log_group_of(name))

    def _read_logs(self, run: str) -> list[InvocationLog]:
        """Read what is new in the logs of a run's functions, whoever has made them."""
        with self._lock:
            known = self._logs.setdefault(run, {})
            if not known:
                known.update({name: InvocationLog() for name in self._names_of(run)})
            for name, log in list(known.items()):
                if not self._read_log(name, log):
                    del known[name]
                    self._active.discard(name)
            return list(known.values())

    def _names_of(self, run: str) -> list[str]:
        """Find the functions of a run by their logs, since Lambda cannot list functions whose names begin alike."""
        pages = self._clients.logs.get_paginator("describe_log_groups")
        with asking(f"the functions of the run {run} cannot be listed"):
            groups = [
                function_of_group(group["logGroupName"])
                for page in pages.paginate(logGroupNamePrefix=log_group_of(name_prefix(run)))
                for group in page["logGroups"]
            ]
        return [name for name in groups if is_function_of(run, name)]

    def _read_log(self, name: str, log: InvocationLog) -> bool:
        """Read the new lines of a log; False if it was removed."""
        since_ms = max(0, log.newest_ms - int(_LOG_DELAY_S * 1000))
        pages = self._clients.logs.get_paginator("filter_log_events")
        try:
            with asking(f"the log of the function {name} cannot be read"):
                for page in pages.paginate(
                    logGroupName=log_group_of(name), startTime=since_ms, PaginationConfig={"PageSize": _PAGE}
                ):
                    log.take(page["events"])
        except Refused as error:
            if error.code != "ResourceNotFoundException":
                raise
            return False
        log.forget_before(since_ms)
        return True


def _state(invocations: Collection[Invocation], asked_s: float) -> Exit | None:
    """Return how a member ended, which all of its invocations together tell; None if it runs or may still start.

    `asked_s` is the time since it was started, or since this process has first looked for it.
    """
    if any(each.report is None and not _is_overdue(each) for each in invocations):
        return None
    decisive = [each for each in invocations if not each.is_spare]
    if not decisive:
        if asked_s < _MAX_EVENT_AGE_S + _LOG_DELAY_S:
            return None
        return Exit(
            None,
            ran_s=0.0,
            reason=f"was not started: Lambda dropped its event after {_MAX_EVENT_AGE_S} s in its queue; ask AWS for a "
            "higher quota of concurrent executions, or use fewer members",
        )
    last = decisive[-1]
    if last.report is None:
        return Exit(None, reason="is gone: its time is over, and the log of its function does not tell how it ended")
    billed_s = sum(each.report.billed_s for each in invocations if each.report is not None)
    return last.exit(billed_s)


def _is_overdue(invocation: Invocation) -> bool:
    return invocation.ends_at_s is not None and time.time() > invocation.ends_at_s + _LOG_DELAY_S


def _unless_gone(remove: Callable[..., object], **what: str) -> None:
    try:
        with asking("it cannot be removed"):
            remove(**what)
    except Refused as error:
        if error.code != "ResourceNotFoundException":
            raise


def _with_advice(error: Refused, settings: FunctionSettings) -> str:
    """Say what to do about a function that Lambda refuses."""
    text = str(error)
    if "MemorySize" in text:
        return (
            f"{text}; this account may have less than {settings.memory_mib} MiB for a function: give a smaller offer, "
            "or ask AWS to raise the quota"
        )
    if "role" in text.lower():
        return f"{text}; give a role that Lambda may assume as `role`: {settings.role} is given"
    if "image" in text.lower():
        return f"{text}; push the image that docs/renting.md describes, and name it as `image`"
    return text
