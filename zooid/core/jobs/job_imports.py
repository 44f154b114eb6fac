"""Parsing of job files without executing them, and checks that the modules exist which they import."""

import ast
import difflib
import importlib.util
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import SOURCE_SUFFIXES, PathFinder
from pathlib import Path

from zooid.core.errors import JobError
from zooid.core.text import quoted

_IMPORT_SETTINGS = frozenset({"path", "meta_path", "path_hooks", "modules"})
"""Attributes of `sys` with which a file can change how its imports are resolved."""
_PIP = re.compile(r"\bpip\b")

Import = ast.Import | ast.ImportFrom


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


def unconditional_imports(tree: ast.Module) -> Iterator[Import]:
    """Yield the imports that always run: not in a function, under a condition, or in a `try`."""
    return (statement for statement in tree.body if isinstance(statement, Import))


def _modules(statement: Import) -> Iterator[str]:
    """Yield the top-level names of the modules that a statement imports."""
    if isinstance(statement, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in statement.names)
    elif statement.level == 0 and statement.module:
        yield statement.module.partition(".")[0]


def check_imports(file: Path, tree: ast.Module, shown: str) -> None:
    """Check that every module exists that the job file, or a module beside it, imports.

    Reports nothing if one of these files changes the import path or installs packages.
    """
    folder = file.parent
    for statement in unconditional_imports(tree):
        if isinstance(statement, ast.ImportFrom) and statement.level:
            raise JobError(
                f"{shown}, line {statement.lineno}, imports from {'.' * statement.level}{statement.module or ''}, but "
                "a job file is not part of a package; leave out the dots: modules in its folder are found"
            )
    missing: list[JobError] = []
    seen, pending = {file}, [(shown, tree)]
    while pending:
        name, current = pending.pop()
        if _changes_imports(current):
            return
        for statement in unconditional_imports(current):
            for module in _modules(statement):
                if not _exists(module, folder):
                    missing.append(_missing_module(name, statement.lineno, module, folder))
                elif (neighbour := _neighbour(module, folder)) is not None and neighbour not in seen:
                    seen.add(neighbour)
                    pending.append((str(neighbour), parsed_file(neighbour, str(neighbour))))
    if missing:
        raise missing[0]


def _changes_imports(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr=attribute) if attribute in _IMPORT_SETTINGS:
                return True
            case ast.Attribute(attr="addsitedir") | ast.ImportFrom(module="sys"):
                return True
            case ast.Constant(value=str(text)) if _PIP.search(text):
                return True
    return False


def _exists(module: str, folder: Path) -> bool:
    """Whether members can import the module, which may lie in the job's folder or in the current one."""
    if module in sys.stdlib_module_names or module in sys.modules:
        return True
    if PathFinder.find_spec(module, [str(folder), str(Path.cwd())]) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return True  # it may exist


def _neighbour(module: str, folder: Path) -> Path | None:
    """Return the file of a module that lies beside the job file, if there is one."""
    if module in sys.stdlib_module_names:
        return None
    spec = PathFinder.find_spec(module, [str(folder)])
    if spec is None or spec.origin is None or not spec.origin.endswith(tuple(SOURCE_SUFFIXES)):
        return None
    return Path(spec.origin)


def _missing_module(shown: str, line: int, module: str, folder: Path) -> JobError:
    known = {info.name for info in pkgutil.iter_modules([str(folder), str(Path.cwd()), *sys.path])}
    similar = difflib.get_close_matches(module, known | sys.stdlib_module_names, n=1, cutoff=0.8)
    hint = f"did you mean {similar[0]}? " if similar else ""
    return JobError(
        f"{shown}, line {line}, imports {module}, which is not installed; {hint}Install it wherever members run (pip "
        f"install {module}, if its package has the same name), or put {module}.py beside the job file"
    )
