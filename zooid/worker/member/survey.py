"""How survivors agree on the next roster: each answers once, and the first to write the roster decides.

All of it goes through the store, where a create-only put has one winner. The writer uses the answers that it has seen.
All members follow the same rule, so it does not matter who wins. Requests that do not depend on each other are sent at
the same time, because a request may take as long as many steps of training.
"""

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from zooid.core.abort import Abort
from zooid.core.errors import ObjectExists, ObjectNotFound, PeerLost, RecordError, ScheduleError
from zooid.core.records import decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.roster import Answer, Roster
from zooid.schedule.succession import successor
from zooid.store import ObjectStore
from zooid.store.checkpoint_index import last_step
from zooid.store.rosters import find_roster

logger = logging.getLogger(__name__)

_LOOK_S = 0.01
_NUM_REQUESTS = 8
"""Number of requests that are sent at the same time."""
_MAX_GUESSED = 4
"""If at most this many answers are missing, each is requested. Otherwise a listing shows first which ones exist."""
_SUSPECTED_S = 0.15
"""Time that a suspected member has for its answer: a connection may break between two members that live."""
_MINORITY_S = 2.0
"""Time that a suspected member has for its answer, while less than half of the roster has answered."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """One member's part in replacing a roster."""

    store: ObjectStore
    roster: Roster
    timeout_s: float
    """Time that an unsuspected member has for its answer, since it may be computing."""
    num_grains: Callable[[int], int]
    """Number of grains of a step."""
    lost: Callable[[], Collection[str]]
    """Members that this one knows to be lost."""
    abort: Abort

    def replace(self, answer: Answer) -> Roster:
        """Answer, and wait until the next roster is written, by this member or by another."""
        roster, began_s = self.roster, time.monotonic()
        self.store.put(keys.answer(answer.member, roster.number, roster.change), encode_record(answer))
        answers = {answer.member: answer}
        with ThreadPoolExecutor(_NUM_REQUESTS, thread_name_prefix="zooid-survey") as requests:
            while True:
                self.abort.check()
                finding = requests.submit(self._find)
                self._add_new(answers, requests)
                if (roster_written := finding.result()) is not None:
                    return roster_written
                if self._is_complete(answers.values(), time.monotonic() - began_s):
                    return self._write(list(answers.values()))
                self.abort.sleep(_LOOK_S)

    def _is_complete(self, answers: Collection[Answer], waited_s: float) -> bool:
        """Whether no other member will answer, as far as this member can know."""
        missing = self.roster.stages.keys() - {answer.member for answer in answers}
        suspects = {name for answer in answers for name in answer.suspects} | set(self.lost())
        if not missing or waited_s >= self.timeout_s:
            return True
        is_minority = 2 * len(answers) < len(self.roster.stages)  # it may be this member that is cut off
        return missing <= suspects and waited_s >= (_MINORITY_S if is_minority else _SUSPECTED_S)

    def _add_new(self, answers: dict[str, Answer], requests: ThreadPoolExecutor) -> None:
        """Read the answers that are not among these yet. A member answers once, so its answer never changes."""
        number, change = self.roster.number, self.roster.change
        missing = {keys.answer(name, number, change): name for name in self.roster.stages if name not in answers}
        if len(missing) > _MAX_GUESSED:
            listed = set(self.store.list(keys.answers_under(number, change)))
            missing = {key: name for key, name in missing.items() if key in listed}
        for name, answer in zip(missing.values(), requests.map(self._find_answer, missing), strict=True):
            if answer is not None:
                answers[name] = answer

    def _find_answer(self, key: str) -> Answer | None:
        try:
            return decode_record(bytes(self.store.get(key)), Answer, key)
        except ObjectNotFound:
            return None
        except RecordError as error:
            logger.warning("an unreadable answer to the survey is ignored: %s", error)
            return None

    def _find(self) -> Roster | None:
        return find_roster(self.store, self.roster.number, self.roster.change + 1)

    def _write(self, answers: list[Answer]) -> Roster:
        try:
            roster = successor(
                self.roster, answers, checkpoint_step=lambda: last_step(self.store), num_grains=self.num_grains
            )
        except ScheduleError as error:
            raise PeerLost(f"the run cannot go on: {error}") from error
        try:
            self.store.create(keys.roster(roster.number, roster.change), encode_record(roster))
        except ObjectExists:
            winner = self._find()
            assert winner is not None, "rosters are never deleted during their run"
            return winner
        return roster
