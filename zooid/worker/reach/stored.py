"""Members that reach nothing but a store: their messages are objects, and nobody has to meet."""

import threading
from collections.abc import Sequence

from torch import distributed as dist

from zooid.comm import Options, StoreGroups
from zooid.core.abort import Abort
from zooid.core.errors import PeerLost
from zooid.core.runs import keys
from zooid.core.runs.roster import Roster
from zooid.store import ObjectStore
from zooid.worker.reach.roster_groups import Groups, number_of_pipeline, own_groups
from zooid.worker.reach.store_heartbeats import SignsOfLife


class StoreReach:
    """Over objects."""

    def __init__(
        self, store: ObjectStore, roster: Roster, name: str, options: Options, *, timeout_s: float, abort: Abort
    ) -> None:
        self._store = store
        self._name = name
        self._options = options
        self._timeout_s = timeout_s
        self._abort = abort
        self._lock = threading.Lock()
        self._roster = roster
        self._groups: StoreGroups | None = None
        self._signs: SignsOfLife | None = None
        if len(roster.seats) > 1:
            prefix = f"{keys.comm_of(roster.run, roster.number)}/signs"
            self._signs = SignsOfLife(store, prefix, name, self._on_lost)
            self._signs.start()

    @property
    def lost(self) -> frozenset[str]:
        return frozenset() if self._signs is None else frozenset(self._signs.lost)

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]]) -> Groups:
        made = StoreGroups(
            self._store,
            keys.comm_of(roster.run, roster.number, roster.change),
            self._options,
            timeout_s=self._timeout_s,
            abort=self._abort,
        )

        def make(number: int, names: Sequence[str]) -> dist.ProcessGroup:
            return made.group(f"group-{number}", names.index(self._name), len(names))

        groups = own_groups(roster, self._name, ties, make)
        with self._lock:
            self._groups, self._roster = made, roster
        if self._signs is not None:
            self._signs.watch([seat.name for seat in roster.seats], self._call)
        return groups

    def call(self) -> None:
        if self._signs is not None:
            self._signs.call(self._call)

    def end(self, *, in_peace: bool) -> None:
        with self._lock:
            groups, self._groups = self._groups, None
        if in_peace:
            self._stop_signs()
        if groups is not None:
            groups.close(self._roster.rank_of(self._name), len(self._roster.seats), in_peace=in_peace)

    def close(self, *, in_peace: bool) -> None:
        self._stop_signs()

    @property
    def _call(self) -> str:
        return f"{keys.comm_of(self._roster.run, self._roster.number, self._roster.change)}/survey"

    def _on_lost(self) -> None:
        """Free all who wait for somebody that is lost. A pipeline that is whole finishes its grains."""
        with self._lock:
            groups, roster = self._groups, self._roster
        if groups is None:
            return
        lost = self.lost
        kept = []
        member = next((each for each in roster.members if each.name == self._name), None)
        if member is not None and not lost & set(roster.pipeline(member.replica)):
            kept.append(f"group-{number_of_pipeline(roster, member.replica)}")
        who = ", ".join(sorted(lost)) or "a member"
        groups.fail(PeerLost(f"{who} is lost: it gives no sign of life"), kept=kept)

    def _stop_signs(self) -> None:
        if self._signs is not None:
            self._signs.close()
