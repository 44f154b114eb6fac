"""Barriers for members that share only a store: they proceed together and exchange what they have measured."""

from collections.abc import Sequence
from typing import Any

import msgspec

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout
from zooid.core.records import decode_json
from zooid.store import ObjectStore
from zooid.store.barrier import ObjectBoard, RanksMissing, pass_barrier


class ProbeBarrier:
    """A sequence of barriers for all members, under a prefix that nobody has used before."""

    def __init__(
        self, store: ObjectStore, prefix: str, names: Sequence[str], rank: int, *, timeout_s: float, abort: Abort
    ) -> None:
        self._board = ObjectBoard(store, abort)
        self._prefix = prefix
        self._names = names
        self._rank = rank
        self._timeout_s = timeout_s
        self._number = 0

    def meet(self, what: str, message: object = None, kind: Any = None) -> list[Any]:
        """Wait for all members; return each member's message, decoded as `kind`.

        CommTimeout names a member that did not arrive; RecordError names one whose message is not of this kind.
        """
        folder = f"{self._prefix}/meeting-{self._number:06d}"
        self._number += 1
        encoded = msgspec.json.encode(message)
        try:
            received = pass_barrier(
                self._board, folder, self._rank, len(self._names), encoded, timeout_s=self._timeout_s
            )
        except RanksMissing as error:
            [rank] = error.ranks
            alternative = "" if rank else ", or waits for another member"
            raise CommTimeout(
                f"member {self._names[rank]} did not reach {what} within {self._timeout_s:g} s: it is late or "
                f"lost{alternative}"
            ) from error
        return [
            decode_json(data, kind, f"{folder} of {name}", f"a member's message at {what}")
            for name, data in zip(self._names, received, strict=True)
        ]
