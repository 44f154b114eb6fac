"""One member's part in planned changes: it learns of them, gets ready, and sees when all members are."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from zooid.core.abort import Abort
from zooid.core.errors import StoreError, ZooidError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.core.runs.store_rules import CHANGE_LOOK_S, look_s
from zooid.schedule.planned_rosters import check_follows, planned_change
from zooid.schedule.share_rule import PaceWatch
from zooid.schedule.step_state import Vote
from zooid.store.planned_changes import find_newest_change
from zooid.worker.member.change_records import ChangeRecords
from zooid.worker.peers import Peers

logger = logging.getLogger(__name__)


class ChangeWatch:
    """The planned changes of one roster, as one member knows them.

    The first member looks for them in the store, and its votes tell the others. Each member then gets ready in a
    thread, while it trains.
    """

    def __init__(
        self,
        records: ChangeRecords,
        peers: Peers,
        roster: Roster,
        get_ready: Callable[[Roster, PlannedChange], None],
        *,
        is_first: bool,
        abort: Abort,
    ) -> None:
        """`get_ready` does what this member can do ahead of a change of its roster."""
        self._records = records
        self._get_ready = get_ready
        self._store = records.store
        self._peers = peers
        self._roster = roster
        self._is_first = is_first
        self._abort = abort
        self._ended = threading.Event()
        self._newest = 0
        self._prepared: PlannedChange | None = None
        self._pace_watch = PaceWatch()
        self._proposing: threading.Thread | None = None
        self._begun = 0
        """Number of the change that this member gets ready for."""
        self._attempt = Abort()
        """Ends the present attempt to get ready."""
        self.agreed: PlannedChange | None = records.change(roster, roster.attempt) if roster.guests else None
        """The change that all members are ready for."""
        if is_first and not roster.guests:
            threading.Thread(target=self._look, name="zooid-changes", daemon=True).start()

    def note_paces(self, paces: tuple[float, ...], shares: tuple[int, ...]) -> None:
        """Plan other shares if a replica is slower than its share allows. Only the first member does.

        `shares` are the numbers of grains in a step of the present batch size.
        """
        if not self._is_first or self.agreed is not None or self._roster.guests:
            return
        self._pace_watch.note(paces)
        better = self._pace_watch.better_than(shares)
        if better is not None and self._proposing is None and self._newest == 0:
            self._proposing = threading.Thread(target=self._propose, args=(better,), name="zooid-shares", daemon=True)
            self._proposing.start()

    def _propose(self, shares: tuple[int, ...]) -> None:
        """Plan a change of the shares alone, unless another change is planned already."""
        roster = self._roster
        cause = f"replicas are not equally fast: shares become {', '.join(map(str, shares))}"
        change = planned_change(roster, (roster.members, roster.copies), cause, 1, shares=shares)
        with suppress(StoreError):
            self._store.create(keys.planned_change(roster.number, roster.change, change.attempt), encode_record(change))
            self._newest = max(self._newest, change.attempt)

    def close(self) -> None:
        self._ended.set()
        self._attempt.set("the roster has been replaced")

    def ballot(self, step: int) -> tuple[int, int]:
        """The newest change that this member can tell others, and the one that it is ready for after this step."""
        prepared = self._prepared
        is_ready = prepared is not None and not prepared.is_early(self._roster, step)
        return self._newest if self._is_first else 0, prepared.attempt if prepared is not None and is_ready else 0

    def take(self, total: Vote) -> None:
        """Learn from the sum of all votes."""
        if self.agreed is not None:
            return
        newest = int(total.newest_change)
        if newest > self._begun:
            self._begun = newest
            self._attempt.set("a newer change is planned")
            self._attempt = Abort()
            arguments = (newest, self._attempt)
            threading.Thread(target=self._prepare, args=arguments, name="zooid-prepare", daemon=True).start()
        prepared = self._prepared
        if total.agrees_on_change(self._roster.num_voters):
            assert prepared is not None
            if not prepared.is_without_effect(self._roster):
                self.agreed = prepared

    def _look(self) -> None:
        pause_s = look_s(self._store.url, CHANGE_LOOK_S)
        while not self._ended.wait(pause_s):
            with suppress(StoreError):
                if (change := find_newest_change(self._store, self._roster, self._newest)) is not None:
                    self._newest = change.attempt

    def _prepare(self, attempt: int, abort: Abort) -> None:
        self._abort.on_set(abort.set)
        try:
            change = self._records.change(self._roster, attempt)
            check_follows(self._roster, change)
            self._get_ready(self._roster, change)
            self._peers.connect(change, self._roster, abort)
        except ZooidError as error:
            if not abort.is_set:
                logger.warning("this member is not ready for the planned change %d: %s", attempt, error)
            return
        finally:
            self._abort.forget(abort.set)
        if self._begun == attempt:
            self._prepared = change
