"""The c10d Store that torch.distributed needs for its rendezvous, as objects, so that no rank hosts anything.

Every key is a log of versions, each a create-only object, so counters and compare-and-set are exact however many ranks
write at once. A rendezvous happens once per group; the messages of training do not pass through this store.
"""

import datetime
import re
import secrets
from collections.abc import Sequence
from urllib.parse import quote

from torch.distributed import Store  # type: ignore[attr-defined]  # exported, but not in its __all__

from zooid.comm.group_options import Options
from zooid.core.abort import Abort
from zooid.core.errors import CommError, CommTimeout, ObjectExists
from zooid.core.runs.keys import number_in
from zooid.store import ObjectStore, RetryingStore, wait_for
from zooid.store.folders import make_private

_NONCE_BYTES = 16
_COUNTER = re.compile(rb"-?[0-9]{1,19}")
DEFAULT_TIMEOUT_S = 300.0


class ObjectRendezvous(Store):
    """A c10d Store under a prefix of an object store.

    The prefix must be new: keys of an earlier run would count as this one's. A URL as init_method chooses a new prefix
    by itself. `abort` ends every wait in the store.
    """

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        abort: Abort | None = None,
        options: Options | None = None,
        latency_s: float | None = None,
        lobby: str | None = None,
    ) -> None:
        super().__init__()
        self.abort = abort or Abort()
        self.objects = objects
        self._store = RetryingStore(objects, self.abort, give_up_s=timeout_s)
        self.prefix = prefix
        self.options = options or Options()
        """Options of groups that are given none of their own."""
        self.latency_s = latency_s
        """Latency of a small request, the same on all ranks; None where it was not measured."""
        self.prefixes = (prefix,) if lobby is None else (prefix, lobby)
        """Prefixes to delete when all ranks have left."""
        self.set_timeout(datetime.timedelta(seconds=timeout_s))

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        while not self._append(key, self._num_versions(key), data):
            self.abort.check()

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._latest(key, self._num_versions(key))

    def add(self, key: str, amount: int) -> int:
        while True:
            self.abort.check()
            count = self._num_versions(key)
            value = self._latest(key, count) if count else b"0"
            if _COUNTER.fullmatch(value) is None:
                raise CommError(f"the key {key!r} at the rendezvous holds {value[:50]!r}; it must be a number")
            total = int(value) + amount
            if self._append(key, count, str(total).encode()):
                return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        expected = expected.encode() if isinstance(expected, str) else bytes(expected)
        desired = desired.encode() if isinstance(desired, str) else bytes(desired)
        while True:
            self.abort.check()
            count = self._num_versions(key)
            current = self._latest(key, count) if count else b""
            if current != expected:
                return current if count else expected
            if self._append(key, count, desired):
                return desired

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._num_versions(key) for key in keys)

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        default: datetime.timedelta = self.timeout  # type: ignore[attr-defined]  # the stub lacks it
        timeout_s = (default if timeout is None else timeout).total_seconds()
        for key in keys:
            try:
                wait_for(self.objects, self._version_key(key, 0), timeout_s=timeout_s, abort=self.abort)
            except CommTimeout as error:
                raise CommTimeout(f"no rank set the key {key!r} at the rendezvous within {timeout_s:g} s") from error

    def delete_key(self, key: str) -> bool:
        versions = self._store.list(self._folder(key))
        self._store.delete(versions)
        return bool(versions)

    def num_keys(self) -> int:
        return len({key.rpartition("/")[0] for key in self._store.list(f"{self.prefix}/kv")})

    # The C++ half of a wrapping PrefixStore calls them by these names.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def _folder(self, key: str) -> str:
        return f"{self.prefix}/kv/{quote(key, safe='')}"

    def _version_key(self, key: str, version: int) -> str:
        return f"{self._folder(key)}/{version:08d}"

    def _num_versions(self, key: str) -> int:
        listed = self._store.list(self._folder(key))
        return sum(number_in(version, "{:08d}") is not None for version in listed)

    def _latest(self, key: str, count: int) -> bytes:
        return bytes(self._store.get(self._version_key(key, count - 1)))[_NONCE_BYTES:]

    def _append(self, key: str, version: int, value: bytes) -> bool:
        """Write the next version, or return False where another rank was first. The nonce identifies the writer.

        Ranks exchange secrets here, so other users of this machine get no access.
        """
        make_private(self.objects, self.prefix)
        try:
            self._store.create(self._version_key(key, version), secrets.token_bytes(_NONCE_BYTES) + value)
        except ObjectExists:
            return False
        return True
