"""Process groups of members that know each other already, and need no rendezvous but only keys of their own."""

from collections.abc import Collection

from zooid.comm.group_options import Options
from zooid.comm.process_group import ProcessGroup
from zooid.comm.rendezvous import leave
from zooid.comm.store.store_transport import StoreTransport
from zooid.core.abort import Abort
from zooid.store import ObjectStore
from zooid.store.folders import make_private


class StoreGroups:
    """Groups under one prefix, which must be new."""

    def __init__(self, objects: ObjectStore, prefix: str, options: Options, *, timeout_s: float, abort: Abort) -> None:
        self._objects = objects
        self._prefix = prefix
        self._options = options
        self._timeout_s = timeout_s
        self._abort = abort
        self._groups: dict[str, ProcessGroup] = {}

    def group(self, name: str, rank: int, size: int) -> ProcessGroup:
        make_private(self._objects, self._prefix)
        transport = StoreTransport(self._objects, f"{self._prefix}/{name}", rank, timeout_s=self._timeout_s)
        group = ProcessGroup(transport, rank, size, abort=self._abort, timeout_s=self._timeout_s, options=self._options)
        self._groups[name] = group
        return group

    def fail(self, error: BaseException, *, kept: Collection[str] = ()) -> None:
        """End all calls in flight and all later ones with this error, in all groups but those named in `kept`."""
        for name, group in list(self._groups.items()):
            if name not in kept:
                group.engine.fail(error)

    def close(self, rank: int, size: int, *, in_peace: bool) -> None:
        """Leave all groups. The last of `size` members that leaves with `in_peace` deletes all messages."""
        for group in self._groups.values():
            group.shutdown()
        if in_peace:
            leave(self._objects, (self._prefix,), rank, size, timeout_s=self._timeout_s)
