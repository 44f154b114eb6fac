"""Files that people keep: replaced whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zooid.core.errors import InputError


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """A file beside the named one, to write to; it takes its place when all went well, and vanishes otherwise.

    Inside one another, several files are replaced when all of them are written, or none is.
    """
    staged = path.with_name(path.name + ".part")
    try:
        yield staged
        staged.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            staged.unlink()
