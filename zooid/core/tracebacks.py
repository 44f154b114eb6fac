"""The part of a traceback that a user can act on: frames of the user's own files."""

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

_FOREIGN = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
"""Where file names begin that are not the user's: zooid, Python, installed packages, and code without a file."""


def user_frames(error: BaseException) -> str:
    """The frames of the error's first cause that are in the user's files, as Python shows them; empty without any."""
    for cause in reversed(list(_chain(error))):
        frames = [
            frame for frame in traceback.extract_tb(cause.__traceback__) if not frame.filename.startswith(_FOREIGN)
        ]
        if frames:
            return "".join((*traceback.format_list(frames), *traceback.format_exception_only(cause)))
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
