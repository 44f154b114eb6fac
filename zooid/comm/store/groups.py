"""Process groups of members that know each other already: they need no meeting, only keys of their own."""

from collections.abc import Collection

from zooid.comm.group_options import Options
from zooid.comm.meeting import leave
from zooid.comm.process_group import ProcessGroup
from zooid.comm.store.transport import StoreTransport
from zooid.comm.traffic_counter import Counter
from zooid.core.abort import Abort
from zooid.store import ObjectStore
from zooid.store.folders import make_private


class StoreGroups:
    """Groups under one prefix, which nobody has used before."""

    def __init__(self, objects: ObjectStore, prefix: str, options: Options, *, timeout_s: float, abort: Abort) -> None:
        self._objects = objects
        self._prefix = prefix
        self._options = options
        self._timeout_s = timeout_s
        self._abort = abort
        self._groups: dict[str, ProcessGroup] = {}

    def group(self, name: str, rank: int, size: int) -> ProcessGroup:
        make_private(self._objects, self._prefix)
        counter = Counter()
        transport = StoreTransport(
            self._objects, f"{self._prefix}/{name}", rank, timeout_s=self._timeout_s, counter=counter
        )
        group = ProcessGroup(
            transport,
            rank,
            size,
            abort=self._abort,
            timeout_s=self._timeout_s,
            options=self._options,
            counter=counter,
        )
        self._groups[name] = group
        return group

    def fail(self, error: BaseException, *, kept: Collection[str] = ()) -> None:
        """End everything that is under way in all groups but those that are kept, and everything that comes."""
        for name, group in list(self._groups.items()):
            if name not in kept:
                group.engine.fail(error)

    def close(self, rank: int, size: int, *, in_peace: bool) -> None:
        """Leave all groups. The last of `size` members that leaves in peace removes what they have exchanged."""
        for group in self._groups.values():
            group.shutdown()
        if in_peace:
            leave(self._objects, (self._prefix,), rank, size, timeout_s=self._timeout_s)
