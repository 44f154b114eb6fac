"""Parsing of Python files without executing them."""

import ast
import warnings
from pathlib import Path

from zooid.core.errors import JobError
from zooid.core.text import quoted


def parsed_file(file: Path, shown: str) -> ast.Module:
    """Parse a file; the message of a syntax error shows the line and a caret."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise JobError(f"{shown} cannot be read: {error.strerror}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python repeats them when the file is executed
        try:
            compile(data, str(file), "exec", dont_inherit=True)  # finds errors that parsing does not: a stray `return`
            return ast.parse(data, str(file))
        except SyntaxError as error:
            raise JobError(_syntax_error(error, shown)) from error
        except (ValueError, RecursionError, MemoryError) as error:  # null bytes before Python 3.12, or deep nesting
            raise JobError(f"{shown} is not Python: {quoted(str(error))}") from error


def _syntax_error(error: SyntaxError, shown: str) -> str:
    where = f"{shown}, line {error.lineno}" if error.lineno else shown
    text = (error.text or "").rstrip("\n")
    if not text.strip():
        return f"{where}: {error.msg}"
    line = text.lstrip()
    caret = " " * max((error.offset or 1) - 1 - (len(text) - len(line)), 0) + "^"
    return f"{where}: {error.msg}\n    {line}\n    {caret}"
