"""The members that are running now: started together, watched together, ended together."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from zooid.coordinator.plans.offer_names import held_to, num_threads
from zooid.core import errors
from zooid.core.errors import InputError, MemberFailed, ObjectNotFound, RecordError, ZooidError
from zooid.core.interrupts import uninterrupted
from zooid.core.records import decode_record, encode_record
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.spec import Failure, MemberHandle, MemberSpec
from zooid.platforms import Exit, Launch, Platform, Program
from zooid.platforms.local import LocalPlatform
from zooid.store import ObjectStore

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_LAST_WORDS_S = 1.0
"""How long to look for a cause, after the first member has exited, among others that exit as a consequence."""
_LOG_LINES = 20


@dataclass(frozen=True)
class _Running:
    member: str
    roster: int
    offer: Offer
    handle: Any
    started_s: float
    """When the member was started. The clock is this process's, even if another process has started the member."""


def ready_platform(offer: Offer) -> LocalPlatform:
    """This machine, which begins at once to get ready for members on the offer, while others decide what to start."""
    platform = LocalPlatform()
    if held_to(offer) is None:
        platform.expect(num_threads(offer), uses_gpus=_uses_gpus(offer))
    return platform


def _uses_gpus(offer: Offer) -> bool:
    return (held_to(offer) is None and offer.kind == "owned") or offer.num_gpus > 0


def wait_for_all(crews: Sequence["Crew"], on_poll: Callable[[], None]) -> None:
    """Until every member of every crew has exited well; raises for the first that did not."""
    while True:
        are_done = [crew.is_done() for crew in crews]
        on_poll()
        if all(are_done):
            return
        time.sleep(_POLL_S)


_LEFT_OUT_S = 3.0
"""How long a member that the others do without has to end by itself."""


class Crew:
    """Members on one platform. Leaving the context ends every one that still runs.

    `is_replaced` says whether they obey another coordinator by now. They are then left to it.
    Where members only check, what they refuse is the user's to mend; later, the same error is a member's failure.
    `during` says what members do whose names no user knows, as `while the job was being measured`.
    """

    def __init__(
        self,
        platform: Platform[Any],
        store: ObjectStore,
        *,
        checks_input: bool,
        during: str = "",
        is_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        self._platform = platform
        self._store = store
        self._checks_input = checks_input
        self._during = during
        self._is_replaced = is_replaced
        self._running: list[_Running] = []
        self._ended_s: dict[str, float] = {}
        """When each member was first seen to have exited."""

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.end()

    def start(self, program: Program, specs: Sequence[MemberSpec], offers: Sequence[Offer]) -> None:
        """Write the specs, then start a member for each, on its own offer."""
        for spec in specs:
            self._store.put(keys.spec(spec.member, spec.roster), encode_record(spec))
        for spec, offer in zip(specs, offers, strict=True):
            spec_url = f"{spec.store}/{keys.spec(spec.member, spec.roster)}"
            launch = Launch(
                spec.member, program, spec_url, spec.num_threads, size=held_to(offer), uses_gpus=_uses_gpus(offer)
            )
            with uninterrupted():
                handle = self._platform.launch(launch)
                self._running.append(_Running(spec.member, spec.roster, offer, handle, time.monotonic()))

    def record_handles(self) -> None:
        """Write down where the members are, for a coordinator that may have to adopt them."""
        for running in self._running:
            record = MemberHandle(
                member=running.member,
                started_at_s=time.time() - (time.monotonic() - running.started_s),
                place=self._platform.locate(running.handle),
            )
            self._store.put(keys.handle(running.member, running.roster), encode_record(record))

    def adopt(self, member: str, roster: int, offer: Offer, handle: Any, started_at_s: float) -> None:
        """Take over a member that another process has started."""
        started_s = time.monotonic() - max(0.0, time.time() - started_at_s)
        self._running.append(_Running(member, roster, offer, handle, started_s))

    def wait(self, on_poll: Callable[[], None]) -> None:
        """Until every member has exited well; raises for the first that did not."""
        wait_for_all([self], on_poll)

    def wait_for_survivors(
        self,
        on_poll: Callable[[], None],
        on_lost: Callable[[str, str], None],
        is_left_out: Callable[[str], bool],
    ) -> None:
        """Wait until all members have exited. Members that were killed are told to `on_lost`, and the rest goes on.

        Members that the others do without end by themselves, and so do all if one finds that the run cannot go on.
        Those that hang, are stopped or cut off are ended.

        Raises for a member that has ended with an error of its own, and if no member has exited well.
        """
        lost: set[str] = set()
        left_out_s: dict[str, float] = {}
        can_go_on = True
        while True:
            exits = {running.member: self._platform.poll(running.handle) for running in self._running}
            for member, end in exits.items():
                if end is not None and not end.is_success and member not in lost:
                    words = self._last_words(member)
                    if words is not None and not words.is_consequence:
                        raise self._failure()
                    lost.add(member)
                    can_go_on &= words is None or is_left_out(member)
                    if words is None:
                        on_lost(member, str(end))
            on_poll()
            if all(end is not None for end in exits.values()):
                break
            for running in self._running:
                if exits[running.member] is None and (not can_go_on or is_left_out(running.member)):
                    since_s = left_out_s.setdefault(running.member, time.monotonic())
                    if time.monotonic() - since_s > _LEFT_OUT_S:
                        self._platform.terminate(running.handle)
            time.sleep(_POLL_S)
        if len(lost) == len(exits):
            raise self._failure()

    def is_done(self) -> bool:
        """Whether every member has exited well; raises for the first that did not."""
        exits = [self._platform.poll(running.handle) for running in self._running]
        if any(end is not None and not end.is_success for end in exits):
            raise self._failure()
        return all(end is not None for end in exits)

    def end(self) -> None:
        """End all members at the same time; returns when they are gone."""
        if self._running and self._is_replaced():
            for running in self._running:
                self._platform.leave(running.handle)
        elif self._running:
            with uninterrupted(), ThreadPoolExecutor(len(self._running)) as pool:
                list(pool.map(lambda running: self._platform.terminate(running.handle), self._running))

    def running_s(self) -> list[tuple[Offer, float]]:
        """How long each member has run on its offer so far, or until it exited."""
        now_s = time.monotonic()
        for running in self._running:
            if running.member not in self._ended_s and self._platform.poll(running.handle) is not None:
                self._ended_s[running.member] = now_s
        return [
            (running.offer, self._ended_s.get(running.member, now_s) - running.started_s) for running in self._running
        ]

    def _failure(self) -> ZooidError:
        """The cause rather than its consequences: members that only lost a peer are not it."""
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while True:
            failed = self._failed()
            words = {member: self._last_words(member) for member, _ in failed}
            causes = [(m, end) for m, end in failed if (last := words[m]) is None or not last.is_consequence]
            if causes or time.monotonic() > deadline_s:
                member, end = (causes or failed)[0]
                return self._describe(member, end, words[member])
            time.sleep(_POLL_S)

    def _failed(self) -> list[tuple[str, Exit]]:
        exits = [(running.member, self._platform.poll(running.handle)) for running in self._running]
        return [(member, end) for member, end in exits if end is not None and not end.is_success]

    def _last_words(self, member: str) -> Failure | None:
        key = keys.failure(member, next(running.roster for running in self._running if running.member == member))
        try:
            return decode_record(bytes(self._store.get(key)), Failure, key)
        except ObjectNotFound:
            return None
        except RecordError as error:  # the end of its log says more than an object that nobody can read
            logger.warning("the last words of %s cannot be read: %s", member, error)
            return None

    def _describe(self, member: str, end: Exit, words: Failure | None) -> ZooidError:
        if words is None:
            failure: ZooidError = MemberFailed(member, str(end), during=self._during)
            failure.details = self._log_tail(member)
            return failure
        if words.is_input_error and self._checks_input:
            failure = _input_error(words.error)(words.message)
        else:
            failure = MemberFailed(member, str(end), words.message, self._during)
        failure.details, failure.traceback_text = words.user_frames, words.traceback
        return failure

    def _log_tail(self, member: str) -> str:
        running = next(running for running in self._running if running.member == member)
        lines = self._platform.logs(running.handle).splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def _input_error(name: str) -> type[InputError]:
    """The class of this name; InputError itself where a record names none of its kind."""
    named = getattr(errors, name, None)
    return named if isinstance(named, type) and issubclass(named, InputError) else InputError
