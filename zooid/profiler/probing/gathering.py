"""How members that share nothing but a store go on together: the first hears all, and then lets them go."""

from collections.abc import Sequence
from typing import Any

import msgspec

from zooid.core.abort import Abort
from zooid.core.errors import CommTimeout, RecordError
from zooid.core.records import decode_json
from zooid.store import ObjectStore, wait_for


class Gathering:
    """Meetings of all members, one after the other, under a prefix that nobody has used before.

    Plain puts are enough, since no two members write the same key: a store that ignores create-only puts serves, too.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, names: Sequence[str], rank: int, *, timeout_s: float, abort: Abort
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._names = names
        self._rank = rank
        self._timeout_s = timeout_s
        self._abort = abort
        self._number = 0

    def meet(self, what: str, said: object = None, kind: Any = None) -> list[Any]:
        """Wait until all members are here; what each of them says, which must be of this kind.

        CommTimeout names one that did not come, RecordError one that said something else.
        """
        folder = f"{self._prefix}/meeting-{self._number:06d}"
        self._number += 1
        if self._rank == 0:
            heard: list[Any] = [decode_json(msgspec.json.encode(said), kind, self._names[0], f"ready for {what}")]
            for rank in range(1, len(self._names)):
                key = f"{folder}/{rank:06d}"
                heard.append(decode_json(self._wait(key, rank, what), kind, key, f"what a member says at {what}"))
            self._store.put(f"{folder}/go", msgspec.json.encode(heard))
            return heard
        self._store.put(f"{folder}/{self._rank:06d}", msgspec.json.encode(said))
        key = f"{folder}/go"
        everything: list[Any] = decode_json(self._wait(key, 0, what), list[kind], key, f"what all say at {what}")
        if len(everything) != len(self._names):
            raise RecordError(f"{key} is of {len(everything)} members, but {len(self._names)} measure together")
        return everything

    def _wait(self, key: str, rank: int, what: str) -> memoryview:
        try:
            return wait_for(self._store, key, timeout_s=self._timeout_s, abort=self._abort)
        except CommTimeout as error:
            whom = "" if rank else ", or waits for another one"
            raise CommTimeout(
                f"member {self._names[rank]} did not come to {what} within {self._timeout_s:g} s: it is late or "
                f"lost{whom}"
            ) from error
