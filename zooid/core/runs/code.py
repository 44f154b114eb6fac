"""Archives of code that travel with a run, to machines that share nothing with the coordinator but the store.

An archive is a compressed tar file. It is named by the SHA-256 digest of its bytes, so that a machine fetches each
archive once, and never runs code other than that which the coordinator has packed.
"""

import re

from zooid.core.errors import InputError
from zooid.core.records import Record, require, require_at_least
from zooid.core.text import quoted

MAX_CODE_BYTES = 50_000_000
"""Maximum size of all files in an archive together, before they are compressed. Code is small; data belongs in a
store."""
MAX_CODE_FILES = 20_000
"""Maximum number of files in an archive."""

_DIGEST = re.compile("[0-9a-f]{64}")


class CodeArchive(Record, frozen=True, kw_only=True):
    """An archive of code in the store of a run; `keys.code` gives its key."""

    digest: str
    """SHA-256 digest of the archive: 64 lowercase hexadecimal digits."""
    num_bytes: int
    """Compressed size of the archive."""
    num_files: int
    """Number of files and symbolic links in the archive."""

    def __post_init__(self) -> None:
        require(is_digest(self.digest), _not_a_digest(self.digest))
        require_at_least(1, self, "num_bytes", of="a code archive")
        require_at_least(0, self, "num_files", of="a code archive")


def is_digest(text: str) -> bool:
    """Whether the text is a SHA-256 digest, which is safe as the name of a file."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(digest: str) -> None:
    """Reject a text that is not a digest, before it names a file."""
    if not is_digest(digest):
        raise InputError(_not_a_digest(digest))


def _not_a_digest(digest: str) -> str:
    return f"`digest` is {quoted(digest)!r}; it must be the 64 lowercase hexadecimal digits of a SHA-256 digest"
