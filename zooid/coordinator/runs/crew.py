"""Crews: members that are started, watched and ended together."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from zooid.coordinator.plans.offer_names import enforced_lifetime_s, enforced_size, num_threads
from zooid.coordinator.runs.relay import Relay
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core import errors
from zooid.core.errors import InputError, MemberFailed, ObjectNotFound, RecordError, ZooidError
from zooid.core.interrupts import uninterrupted
from zooid.core.records import encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.spec import Failure, MemberHandle, MemberSpec
from zooid.platforms import Exit, Launch, Platform, Program
from zooid.platforms.local import LocalPlatform
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_CAUSE_TIMEOUT_S = 1.0
"""Maximum time of the search for the cause after the first failed exit, while other members fail as a consequence."""
_LEFT_OUT_S = 3.0
"""Time that a member without a seat in the current roster has to end by itself."""
_LOG_LINES = 20


@dataclass(frozen=True)
class _Running:
    member: str
    roster: int
    offer: Offer
    handle: Any
    started_at_s: float
    """Unix time of its start."""


def ready_platform(offer: Offer) -> LocalPlatform:
    """Return the platform of this machine, which prepares for members on the offer while the caller still plans."""
    platform = LocalPlatform()
    if enforced_size(offer) is None:
        platform.expect(num_threads(offer), uses_gpus=_uses_gpus(offer))
    return platform


def _uses_gpus(offer: Offer) -> bool:
    return (enforced_size(offer) is None and offer.kind == "owned") or offer.num_gpus > 0


def wait_for_all(crews: Sequence["Crew"], on_poll: Callable[[], None]) -> None:
    """Wait until every member of every crew has exited successfully; raise for the first that has not."""
    while True:
        are_done = [crew.is_done() for crew in crews]
        on_poll()
        if all(are_done):
            return
        time.sleep(_POLL_S)


class Crew:
    """Members on one platform. Leaving the context ends all that still run.

    With `checks_input`, an input error of a member is raised as such, for the user to fix; otherwise it is a failed
    member. `during` replaces the names of members that users do not know, as in `while the job was being measured`.
    `is_replaced` returns whether another coordinator has taken over the members, which are then left alone. Members are
    billed on the meter, if there is one, as training members or as those that only prepare for it.
    """

    def __init__(
        self,
        platform: Platform[Any],
        store: ObjectStore,
        *,
        checks_input: bool,
        during: str = "",
        is_replaced: Callable[[], bool] = lambda: False,
        meter: RunMeter | None = None,
        trains: bool = False,
    ) -> None:
        self._platform = platform
        self._store = store
        self._checks_input = checks_input
        self._during = during
        self._is_replaced = is_replaced
        self._meter = meter or RunMeter()
        self._trains = trains
        self._running: dict[str, _Running] = {}
        self._recorded: set[str] = set()
        """Members whose handles are in the store."""
        self._ended: set[str] = set()
        """Members that were found to have exited."""
        self._dismissed: set[str] = set()
        """Members that were ended because nobody needed them any more."""

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.end()

    def run(self, program: Program, specs: Sequence[MemberSpec], offers: Sequence[Offer], relay: Relay) -> None:
        """Start a member for each spec, relay their events, and wait until all have exited successfully."""
        with self:
            self.start(program, specs, offers)
            wait_for_all([self], relay.poll)
        relay.flush()

    def start(self, program: Program, specs: Sequence[MemberSpec], offers: Sequence[Offer]) -> None:
        """Write the specs, then start a member for each on its offer."""
        for spec in specs:
            self._store.put(keys.spec(spec.member, spec.roster), encode_record(spec))
        for spec, offer in zip(specs, offers, strict=True):
            spec_url = f"{spec.store}/{keys.spec(spec.member, spec.roster)}"
            launch = Launch(
                spec.member,
                program,
                spec_url,
                spec.num_threads,
                size=enforced_size(offer),
                uses_gpus=_uses_gpus(offer),
                offer=offer.name,
                trains=self._trains,
                lifetime_s=enforced_lifetime_s(offer),
            )
            with uninterrupted():
                handle = self._platform.launch(launch)
                now_s = time.time()
                self._running[spec.member] = _Running(spec.member, spec.roster, offer, handle, now_s)
                self._meter.start(spec.member, offer, now_s, prepares=not self._trains)

    def record_handles(self) -> None:
        """Write the members' handles, for a coordinator that may have to adopt them."""
        for running in list(self._running.values()):
            if running.member in self._recorded:
                continue
            self._recorded.add(running.member)
            record = MemberHandle(
                member=running.member,
                started_at_s=running.started_at_s,
                place=self._platform.locate(running.handle),
            )
            self._store.put(keys.handle(running.member, running.roster), encode_record(record))

    def adopt(self, member: str, roster: int, offer: Offer, handle: Any, started_at_s: float) -> None:
        """Take over a member that another process has started."""
        self._running[member] = _Running(member, roster, offer, handle, started_at_s)
        self._recorded.add(member)  # by the other process
        if all(billed.member != member for billed in self._meter.running):
            self._meter.start(member, offer, started_at_s, prepares=not self._trains)

    @property
    def members(self) -> Collection[str]:
        """Names of all members, also of those that have exited."""
        return self._running.keys()

    def wait_for_survivors(
        self,
        on_poll: Callable[[], None],
        on_exits: Callable[[], None],
        on_lost: Callable[[str, str], None],
        is_left_out: Callable[[str], bool],
        is_waiting: Callable[[str], bool] = lambda member: False,
    ) -> None:
        """Wait until all members have exited, except those that wait to join.

        Killed members are reported to `on_lost`, and the survivors continue. `on_exits` is called when all members have
        exited, and learns whether others have joined before that.

        Members without a seat end by themselves, and so do all if one finds that the run cannot continue. Those that
        hang, are stopped or are cut off are ended.

        Raises for a member that has ended with an error of its own, and if no member has exited successfully.
        """
        lost: set[str] = set()
        left_out_s: dict[str, float] = {}
        can_continue = True
        while True:
            exits = {running.member: self._poll(running) for running in self._running.values()}
            for member, end in exits.items():
                if end is not None and not end.is_success and member not in lost:
                    failure = self._read_failure(member)
                    if failure is not None and not failure.is_consequence and not is_waiting(member):
                        raise self._error()
                    lost.add(member)
                    if member in self._dismissed:
                        continue
                    can_continue &= failure is None or is_left_out(member) or is_waiting(member)
                    if failure is not None and is_waiting(member):
                        logger.warning("%s could not join: %s", member, failure.message)
                    if failure is None:
                        on_lost(member, str(end))
            on_poll()
            if self._have_exited(exits, is_waiting):
                on_exits()
                if self._have_exited(exits, is_waiting) and self._running.keys() == exits.keys():
                    break
            for running in self._running.values():
                has_exited = exits.get(running.member) is not None
                if not has_exited and (not can_continue or is_left_out(running.member)):
                    since_s = left_out_s.setdefault(running.member, time.monotonic())
                    if time.monotonic() - since_s > _LEFT_OUT_S:
                        self._platform.terminate(running.handle)
            time.sleep(_POLL_S)
        if len(lost) == len(exits):
            raise self._error()

    @staticmethod
    def _have_exited(exits: Mapping[str, Exit | None], is_waiting: Callable[[str], bool]) -> bool:
        """Whether all members have exited, except those that wait to join."""
        return all(end is not None for member, end in exits.items() if not is_waiting(member))

    def ages(self) -> dict[str, tuple[Offer, float]]:
        """Return the offer and the age in seconds of every member that still runs."""
        now_s = time.time()
        return {
            running.member: (running.offer, max(0.0, now_s - running.started_at_s))
            for running in self._running.values()
            if running.member not in self._ended
        }

    def offer_of(self, member: str) -> Offer:
        """Return the offer on which a member runs or ran."""
        return self._running[member].offer

    def dismiss(self, member: str) -> None:
        """End a member that waits to join and is not needed any more."""
        self._dismissed.add(member)
        self._platform.terminate(self._running[member].handle)

    def has_ended(self, member: str) -> bool:
        return self._poll(self._running[member]) is not None

    def is_done(self) -> bool:
        """Whether every member has exited successfully; raises for the first that has failed."""
        exits = [self._poll(running) for running in self._running.values()]
        if any(end is not None and not end.is_success for end in exits):
            raise self._error()
        return all(end is not None for end in exits)

    def end(self) -> None:
        """End all members in parallel, and return when they are gone."""
        if self._running and self._is_replaced():
            for running in self._running.values():
                self._platform.leave(running.handle)
        elif self._running:
            with uninterrupted(), ThreadPoolExecutor(len(self._running)) as pool:
                list(pool.map(lambda running: self._platform.terminate(running.handle), self._running.values()))
            for member in self._running:
                self._meter.end(member, time.time())

    def _poll(self, running: _Running) -> Exit | None:
        """Return how a member has ended; None if it still runs. It costs nothing from then on."""
        end = self._platform.poll(running.handle)
        if end is not None:
            self._ended.add(running.member)
            self._meter.end(running.member, time.time())
        return end

    def _error(self) -> ZooidError:
        """Return the error of the member that caused the failure, not of those that only lost a peer."""
        deadline_s = time.monotonic() + _CAUSE_TIMEOUT_S
        while True:
            exits = [(running.member, self._poll(running)) for running in self._running.values()]
            failed = [(member, end) for member, end in exits if end is not None and not end.is_success]
            failures = {member: self._read_failure(member) for member, _ in failed}
            causes = [(m, end) for m, end in failed if (failure := failures[m]) is None or not failure.is_consequence]
            if causes or time.monotonic() > deadline_s:
                member, end = (causes or failed)[0]
                return self._describe(member, end, failures[member])
            time.sleep(_POLL_S)

    def _read_failure(self, member: str) -> Failure | None:
        try:
            return read_record(self._store, keys.failure(member, self._running[member].roster), Failure)
        except ObjectNotFound:
            return None
        except RecordError as error:  # the end of its log then says more
            logger.warning("the failure of %s cannot be read: %s", member, error)
            return None

    def _describe(self, member: str, end: Exit, failure: Failure | None) -> ZooidError:
        error: ZooidError
        if failure is None:
            error = MemberFailed(member, str(end), during=self._during)
            lines = self._platform.logs(self._running[member].handle).splitlines()
            error.details = "\n".join(lines[-_LOG_LINES:])
            return error
        if failure.is_input_error and self._checks_input:
            error = _input_error(failure.error)(failure.message)
        else:
            error = MemberFailed(member, str(end), failure.message, self._during)
        error.details, error.traceback_text = failure.user_frames, failure.traceback
        return error


def _input_error(name: str) -> type[InputError]:
    """Return the subclass of InputError with this name, or InputError itself if there is none."""
    named = getattr(errors, name, None)
    return named if isinstance(named, type) and issubclass(named, InputError) else InputError
