"""How members that share nothing but a store go on together, and tell each other what they have measured."""

from collections.abc import Sequence
from typing import Any

import msgspec

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout
from zooid.core.records import decode_json
from zooid.store import ObjectStore
from zooid.store.barrier import ObjectBoard, RanksMissing, pass_barrier


class Gathering:
    """Meetings of all members, one after the other, under a prefix that nobody has used before."""

    def __init__(
        self, store: ObjectStore, prefix: str, names: Sequence[str], rank: int, *, timeout_s: float, abort: Abort
    ) -> None:
        self._board = ObjectBoard(store, abort)
        self._prefix = prefix
        self._names = names
        self._rank = rank
        self._timeout_s = timeout_s
        self._number = 0

    def meet(self, what: str, said: object = None, kind: Any = None) -> list[Any]:
        """Wait until all members are here; what each of them says, which must be of this kind.

        CommTimeout names one that did not come, RecordError one that said something else.
        """
        folder = f"{self._prefix}/meeting-{self._number:06d}"
        self._number += 1
        words = msgspec.json.encode(said)
        try:
            heard = pass_barrier(self._board, folder, self._rank, len(self._names), words, timeout_s=self._timeout_s)
        except RanksMissing as error:
            [rank] = error.ranks
            whom = "" if rank else ", or waits for another one"
            raise CommTimeout(
                f"member {self._names[rank]} did not come to {what} within {self._timeout_s:g} s: it is late or "
                f"lost{whom}"
            ) from error
        return [
            decode_json(words, kind, f"{folder} of {name}", f"what a member says at {what}")
            for name, words in zip(self._names, heard, strict=True)
        ]
