"""Members that reach only a store: their messages are objects, and they need no rendezvous."""

import threading
from collections.abc import Sequence

from torch import distributed as dist

from zooid.comm import Options, StoreGroups
from zooid.core.abort import Abort
from zooid.core.errors import PeerLost
from zooid.core.runs import keys
from zooid.core.runs.planned_change import PlannedChange
from zooid.core.runs.roster import Roster
from zooid.store import ObjectStore
from zooid.worker.peers.roster_groups import Groups, Overlaps, own_groups, pipeline_group_number
from zooid.worker.peers.store_heartbeats import StoreHeartbeats


class StorePeers:
    """Peers over objects in a store."""

    def __init__(
        self,
        store: ObjectStore,
        roster: Roster,
        name: str,
        options: Options,
        *,
        timeout_s: float,
        abort: Abort,
        joins: bool = False,
    ) -> None:
        """A process that `joins` has no seat in this roster yet. Its heartbeats begin before anybody counts on it."""
        self._store = store
        self._name = name
        self._options = options
        self._timeout_s = timeout_s
        self._abort = abort
        self._lock = threading.Lock()
        self._roster = roster
        self._groups: StoreGroups | None = None
        self._heartbeats: StoreHeartbeats | None = None
        self._begin_heartbeats(len(roster.seats) + joins)

    @property
    def lost(self) -> frozenset[str]:
        return frozenset() if self._heartbeats is None else frozenset(self._heartbeats.lost)

    def _begin_heartbeats(self, num_members: int) -> None:
        """Begin with heartbeats as soon as there is somebody else."""
        if self._heartbeats is None and num_members > 1:
            prefix = keys.heartbeats_of(self._roster.run, self._roster.number)
            self._heartbeats = StoreHeartbeats(self._store, prefix, self._name, self._on_lost)
            self._heartbeats.start()

    def groups(self, roster: Roster, ties: Sequence[tuple[int, ...]], overlaps: Overlaps) -> Groups:
        prefix = f"{_messages_under(roster)}/groups"
        store_groups = StoreGroups(self._store, prefix, self._options, timeout_s=self._timeout_s, abort=self._abort)

        def make(number: int, names: Sequence[str]) -> dist.ProcessGroup:
            return store_groups.group(f"group-{number}", names.index(self._name), len(names))

        groups = own_groups(roster, self._name, ties, overlaps, make)
        with self._lock:
            self._groups, self._roster = store_groups, roster
        self._begin_heartbeats(len(roster.seats))
        if self._heartbeats is not None:
            self._heartbeats.watch([seat.name for seat in roster.seats], self._survey_key)
        return groups

    def connect(self, change: PlannedChange, roster: Roster, abort: Abort) -> None:
        """Do nothing: the store needs no connections."""

    def announce_survey(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.announce_survey(self._survey_key)

    def end(self, *, is_clean: bool) -> None:
        with self._lock:
            groups, self._groups = self._groups, None
        if groups is not None:
            groups.close(self._roster.rank_of(self._name), len(self._roster.seats), in_peace=is_clean)

    def close(self, *, is_clean: bool) -> None:
        if self._heartbeats is not None:
            self._heartbeats.close(is_clean=is_clean)

    @property
    def _survey_key(self) -> str:
        return f"{_messages_under(self._roster)}/survey"

    def _on_lost(self) -> None:
        """Fail all calls that wait for a lost member. A pipeline without one finishes its grains."""
        with self._lock:
            groups, roster = self._groups, self._roster
        if groups is None:
            return
        lost = self.lost
        kept = []
        replica = roster.replica_of(self._name)
        if replica is not None and not lost & set(roster.pipeline(replica)):
            kept.append(f"group-{pipeline_group_number(roster, replica)}")
        names = ", ".join(sorted(lost)) or "a member"
        groups.fail(PeerLost(f"{names} is lost: it gives no heartbeat"), kept=kept)


def _messages_under(roster: Roster) -> str:
    """Prefix of the messages under this roster. A planned one may lose against another one of the same number."""
    prefix = keys.comm_of(roster.run, roster.number, roster.change)
    return f"{prefix}/planned" if roster.is_planned else prefix
