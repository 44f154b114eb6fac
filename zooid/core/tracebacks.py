"""Stack frames in the user's own files: the part of a traceback that a user can act on."""

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

_FOREIGN = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
"""Path prefixes of code that is not the user's: zooid, Python, installed packages, and code without a file."""


def user_frames(error: BaseException) -> str:
    """Format the stack frames in the user's files, of the innermost cause that has any; empty if there are none."""
    for cause in reversed(list(_chain(error))):
        frames = [
            frame for frame in traceback.extract_tb(cause.__traceback__) if not frame.filename.startswith(_FOREIGN)
        ]
        if frames:
            return "".join((*traceback.format_list(frames), *traceback.format_exception_only(cause)))
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
