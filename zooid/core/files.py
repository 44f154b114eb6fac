"""Atomic replacement of files."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zooid.core.errors import InputError


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`. On success it replaces `path`; on an error it is deleted.

    Nested contexts replace either all of their files or none.
    """
    staged = path.with_name(path.name + ".part")
    try:
        yield staged
        staged.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; give a writable path") from error
    finally:
        with suppress(OSError):
            staged.unlink()
