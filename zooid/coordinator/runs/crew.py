"""Crews: members that are started, watched and ended together."""

import hashlib
import logging
import math
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from msgspec import structs

from zooid.coordinator.job_files.travelling_job import store_package
from zooid.coordinator.plans.offer_names import enforced_lifetime_s, enforced_size
from zooid.coordinator.runs.left_handles import keep_handle
from zooid.coordinator.runs.platform_choice import gpu_use
from zooid.coordinator.runs.relay import Relay
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core import errors
from zooid.core.errors import (
    InputError,
    MemberFailed,
    ObjectNotFound,
    RecordError,
    StoreError,
    ZooidError,
)
from zooid.core.interrupts import uninterrupted
from zooid.core.records import encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.core.runs.spec import Failure, MemberSpec, WorkerSpec
from zooid.core.runs.ticket import Program, Ticket, title_of
from zooid.entry.arrival import own_versions
from zooid.platforms import Launch, Platform
from zooid.store import ObjectStore
from zooid.store.member_starts import cancel_start, find_start
from zooid.store.stored_records import find_end, read_record

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_CAUSE_TIMEOUT_S = 1.0
"""Maximum time of the search for the cause after the first failed exit, while other members fail as a consequence."""
_LEFT_OUT_S = 3.0
"""Time that a member without a seat in the current roster has to end by itself."""
_LOG_LINES = 20
_START_LOOK_S = 5.0
"""How often the store is asked whether a member has started that may wait in a queue: one get."""
_MAX_PUTS = 16
"""Number of members whose records are written at the same time."""


@dataclass
class _Running:
    """A member from its launch to its end."""

    member: str
    run: str
    roster: int
    offer: Offer
    launched_at_s: float
    """Unix time of its launch."""
    predicted_bytes: int = 0
    """Its predicted peak memory; 0 if nothing is predicted."""
    is_queued: bool = False
    """True while the member may wait in a queue of its platform. That time is not billed."""
    exit: Exit | None = None
    """How it ended; None while it runs."""

    @property
    def title(self) -> str:
        return title_of(self.member, self.roster)


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
        platform: Platform,
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
        self._looked_s = -math.inf
        """When the platform was last asked for its members, by the monotonic clock."""
        self._looked_for_starts_s = -math.inf
        """When the store was last asked for the starts of queued members."""
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
        """Write specs and handles, then start a member for each on its offer, all at once."""
        pairs = list(zip(specs, offers, strict=True))
        package = store_package(self._store) if any(offer.is_elsewhere for offer in offers) else ""
        launches = [self._launch(program, spec, offer, package) for spec, offer in pairs]
        handles = [self._handle(launch, offer) for launch, offer in zip(launches, offers, strict=True)]
        self._write(specs, handles)
        now_s = time.time()
        for spec, offer in pairs:
            predicted_bytes = spec.predicted_bytes if isinstance(spec, WorkerSpec) else 0
            self._running[spec.member] = _Running(
                spec.member,
                spec.run,
                spec.roster,
                offer,
                now_s,
                predicted_bytes=predicted_bytes,
                is_queued=offer.is_elsewhere,
            )
            prepares = not self._trains
            self._meter.start(spec.member, offer, now_s, prepares=prepares, is_queued=offer.is_elsewhere)
        self._platform.create(launches)

    def _launch(self, program: Program, spec: MemberSpec, offer: Offer, package: str) -> Launch:
        url = f"{spec.store}/{keys.spec(spec.member, spec.roster)}"
        digest = hashlib.sha256(encode_record(spec)).hexdigest()
        return self._launch_of(program, spec, offer, url, digest, package)

    def _handle(self, launch: Launch, offer: Offer) -> MemberHandle:
        """Choose a place for a member, and return the handle with which any coordinator can find it."""
        return MemberHandle(
            run=launch.ticket.run,
            member=launch.member,
            platform=offer.platform if offer.is_elsewhere else self._platform.name,
            offer=offer.name,
            launched_at_s=time.time(),
            place=self._platform.place(launch),
        )

    def _write(self, specs: Sequence[MemberSpec], handles: Sequence[MemberHandle]) -> None:
        """Write specs and handles, those of several members at the same time."""

        def write(spec: MemberSpec, handle: MemberHandle) -> None:
            self._store.put(keys.spec(spec.member, spec.roster), encode_record(spec))
            self._store.put(keys.handle(spec.member, spec.roster), encode_record(handle))

        if len(specs) == 1:
            write(specs[0], handles[0])
        elif specs:
            with ThreadPoolExecutor(min(len(specs), _MAX_PUTS)) as threads:
                list(threads.map(write, specs, handles))

    def _launch_of(
        self, program: Program, spec: MemberSpec, offer: Offer, url: str, digest: str, package: str
    ) -> Launch:
        ticket = Ticket(
            run=spec.run,
            member=spec.member,
            roster=spec.roster,
            program=program,
            spec_url=url,
            spec_digest=digest,
            num_threads=spec.num_threads,
            size=enforced_size(offer),
            gpu=gpu_use(offer, spec),
            lifetime_s=enforced_lifetime_s(offer),
        )
        if not offer.is_elsewhere:
            return Launch(ticket, offer.name, self._trains)
        ticket = structs.replace(ticket, versions=own_versions())
        return Launch(ticket, offer.name, self._trains, offer.platform, package)

    def adopt(self, member: str, run: str, roster: int, offer: Offer, launched_at_s: float) -> None:
        """Take over a member that another process has started."""
        is_billed = any(billed.member == member for billed in self._meter.running)
        is_queued = offer.is_elsewhere and not is_billed
        self._running[member] = _Running(member, run, roster, offer, launched_at_s, is_queued=is_queued)
        if not is_billed:
            self._meter.start(member, offer, launched_at_s, prepares=not self._trains, is_queued=is_queued)

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
            self._look()
            exits = {running.member: running.exit for running in self._running.values()}
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
                        self._delete([running])
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
            running.member: (running.offer, max(0.0, now_s - running.launched_at_s))
            for running in self._running.values()
            if running.exit is None
        }

    def offer_of(self, member: str) -> Offer:
        """Return the offer on which a member runs or ran."""
        return self._running[member].offer

    def dismiss(self, member: str) -> None:
        """End a member that waits to join and is not needed any more."""
        self._dismissed.add(member)
        self._delete([self._running[member]])

    def has_ended(self, member: str) -> bool:
        self._look()
        return self._running[member].exit is not None

    def have_ended(self) -> bool:
        """Whether every member has ended, however it did."""
        self._look()
        return all(running.exit is not None for running in self._running.values())

    def is_done(self) -> bool:
        """Whether every member has exited successfully; raises for the first that has failed."""
        self._look()
        exits = [running.exit for running in self._running.values()]
        if any(end is not None and not end.is_success for end in exits):
            raise self._error()
        return all(end is not None for end in exits)

    def end_waiting(self) -> None:
        """End members that still wait to join when all others have exited."""
        self._end([running for running in self._running.values() if running.exit is None])

    def end(self) -> None:
        """End all members together, and return when they are gone."""
        self._end(list(self._running.values()))

    def _end(self, members: Sequence[_Running]) -> None:
        if members and not self._is_replaced():
            with uninterrupted():
                self._delete(members)

    def _delete(self, members: Sequence[_Running]) -> None:
        """End members. One whose start was not claimed yet will never start, however late the platform is."""
        for running in members:
            if running.exit is None:
                with suppress(StoreError):  # nobody can start if the store is gone
                    cancel_start(self._store, running.member, running.roster)
        for run in {running.run for running in members}:
            left = self._platform.delete(run, {running.title for running in members if running.run == run})
            listed = self._platform.members(run)
            for running in members:
                if running.exit is None and running.run == run:
                    if running.title in left:
                        keep_handle(self._store, running.member, running.roster)
                    end = self._end_of(running, listed.get(running.title))
                    self._settle(running, end or Exit(-signal.SIGTERM))

    def _look(self) -> None:
        """Find out who has ended, at the pace of the platform."""
        if time.monotonic() - self._looked_s < self._platform.look_s:
            return
        self._looked_s = time.monotonic()
        self._look_for_starts()
        living = [running for running in self._running.values() if running.exit is None]
        for run in {running.run for running in living}:
            listed = self._platform.members(run)
            for running in living:
                if running.run == run and (running.title not in listed or listed[running.title] is not None):
                    self._settle(running, self._end_of(running, listed.get(running.title)) or Exit(None))

    def _look_for_starts(self) -> None:
        """Bill members that have waited in a queue from when they have begun."""
        if time.monotonic() - self._looked_for_starts_s < _START_LOOK_S:
            return
        self._looked_for_starts_s = time.monotonic()
        for running in self._running.values():
            if running.is_queued and running.exit is None and (begun_s := self._begun_at_s(running)) is not None:
                running.is_queued = False
                self._meter.begin(running.member, begun_s)

    def _begun_at_s(self, running: _Running) -> float | None:
        """Return when a member has begun, on the clock of this machine; None if it has not, as far as is known."""
        with suppress(StoreError, RecordError):
            start = find_start(self._store, running.member, running.roster)
            if start is not None and not start.is_cancelled:
                begun_s = running.launched_at_s if start.at_s is None else start.at_s
                return min(max(begun_s, running.launched_at_s), time.time())
        return None

    def _ran_s(self, running: _Running, end: Exit) -> float | None:
        """Return for how long a member ran: 0 if it never began; None if that is not known."""
        if end.ran_s is not None:
            return end.ran_s
        try:
            start = find_start(self._store, running.member, running.roster)
        except (StoreError, RecordError):
            return None
        has_left_no_trace = start is None and end.status is None
        return 0.0 if has_left_no_trace or (start is not None and start.is_cancelled) else None

    def _settle(self, running: _Running, end: Exit) -> None:
        """Note how a member has ended. It costs nothing from then on."""
        if end.exceeded_bytes is not None and running.predicted_bytes:
            end = structs.replace(end, predicted_bytes=running.predicted_bytes)
        running.exit = end
        ran_s = self._ran_s(running, end) if end.billed_s is None else end.billed_s
        if ran_s is None and running.is_queued and (begun_s := self._begun_at_s(running)) is not None:
            self._meter.begin(running.member, begun_s)
        self._meter.end(running.member, time.time(), ran_s, end.used)

    def _end_of(self, running: _Running, listed: Exit | None) -> Exit | None:
        """Return how a member ended: as it has recorded itself, billed as its platform says."""
        recorded = self._read_end(running)
        if recorded is None or listed is None or listed.billed_s is None:
            return recorded or listed
        return structs.replace(recorded, billed_s=listed.billed_s)

    def _read_end(self, running: _Running) -> Exit | None:
        """Read how a member ended; None if that was not recorded, or the store is gone."""
        with suppress(StoreError):
            return find_end(self._store, running.member, running.roster)
        return None

    def _error(self) -> ZooidError:
        """Return the error of the member that caused the failure, not of those that only lost a peer."""
        deadline_s = time.monotonic() + _CAUSE_TIMEOUT_S
        while True:
            self._look()
            exits = [(running.member, running.exit) for running in self._running.values()]
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

    def _read_log(self, member: str) -> str:
        with suppress(ObjectNotFound, StoreError):
            log = self._store.get(keys.log(member, self._running[member].roster))
            return bytes(log).decode(errors="replace")
        return ""

    def _describe(self, member: str, end: Exit, failure: Failure | None) -> ZooidError:
        error: ZooidError
        if failure is None:
            error = MemberFailed(member, str(end), during=self._during)
            lines = (self._read_log(member) or end.output).splitlines()
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
