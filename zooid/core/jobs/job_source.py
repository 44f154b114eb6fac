"""Static checks of a job file: it is Python, its imports exist, and it defines a job.

They take milliseconds, while importing torch takes seconds. They reject only what is certain to fail; the first member
finds the rest.
"""

import ast
import dataclasses
import difflib
import importlib
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job, already_built, no_job, not_python
from zooid.core.jobs.job_imports import check_imports, parsed_file, unconditional_imports

_JOB_NAMES = ("zooid.Job", "zooid.core.jobs.job.Job")
_DYNAMIC_DEFINITIONS = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"})
"""Names with which a file can define a `job` without an assignment."""
_SAME_MODEL = frozenset({"to", "cuda", "cpu", "double", "float", "half", "bfloat16", "train", "eval"})
"""Methods of a model that return the model."""


def check_source(file: Path, shown: str) -> None:
    """Reject a job file that cannot work, without executing it; `shown` is the path that the user gave."""
    if file.suffix not in SOURCE_SUFFIXES:
        raise not_python(shown)
    importlib.invalidate_caches()
    tree = parsed_file(file, shown)
    check_imports(file, tree, shown)
    names = _Names(tree)
    _check_job_exists(tree, names, shown)
    for call in names.job_calls().values():
        _check_fields(call, names, shown)


def stated_data_workers(file: Path, shown: str) -> int:
    """Return the number of data workers that a job file states as a plain number; 0 if it states none."""
    call = _Names(parsed_file(file, shown)).job_calls().get("job")
    for keyword in call.keywords if call is not None else ():
        if keyword.arg == "data_workers" and isinstance(keyword.value, ast.Constant):
            return keyword.value.value if type(keyword.value.value) is int else 0
    return 0


class _Names:
    """The meanings of the names in a file, where they are certain."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.bound = Counter(_bindings(tree))
        """Number of bindings of each name in any scope; `*` stands for star imports."""
        self._imported = {alias: origin for alias, origin in _origins(tree) if self.bound[alias] == 1}

    def job_calls(self) -> dict[str, ast.Call]:
        """Map each variable that holds a job to the call of `zooid.Job` that creates it, if that always runs."""
        return {
            ast.unparse(target): statement.value
            for statement in self._tree.body
            if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Call)
            for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
            if self._origin(statement.value.func) in _JOB_NAMES
        }

    def built_model(self, node: ast.expr) -> str:
        """Return the class of the nn.Module that an expression is certain to be; empty if it may be something else."""
        match node:
            case ast.Name(id=name) if self.bound[name] == 1:
                values = [
                    statement.value
                    for statement in self._tree.body
                    if isinstance(statement, ast.Assign)
                    and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
                ]
                return self.built_model(values[0]) if values else ""
            case ast.Call(func=ast.Attribute(value=model, attr=method)) if method in _SAME_MODEL:
                return self.built_model(model)
            case ast.Call(func=function) if self._is_model_class(function):
                return ast.unparse(function)
        return ""

    def _is_model_class(self, node: ast.expr) -> bool:
        package, _, name = self._origin(node).rpartition(".")
        if package == "torch.nn":
            return name[:1].isupper() and not name.endswith("Parameter")
        if not isinstance(node, ast.Name) or self.bound[node.id] != 1:
            return False
        return any(
            isinstance(statement, ast.ClassDef)
            and statement.name == node.id
            and not statement.decorator_list
            and any(self._is_model_class(base) for base in statement.bases)
            for statement in self._tree.body
        )

    def _origin(self, node: ast.expr) -> str:
        """Return the full dotted name of an expression such as `nn.Linear`; empty if it is unknown."""
        match node:
            case ast.Name(id=name):
                return self._imported.get(name, "")
            case ast.Attribute(value=value, attr=attribute):
                origin = self._origin(value)
                return f"{origin}.{attribute}" if origin else ""
        return ""


def _bindings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)


def _origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, with their full dotted names."""
    for statement in unconditional_imports(tree):
        for alias in statement.names:
            if isinstance(statement, ast.ImportFrom):
                yield alias.asname or alias.name, f"{statement.module}.{alias.name}"
            elif alias.asname:
                yield alias.asname, alias.name
            else:
                yield alias.name.partition(".")[0], alias.name.partition(".")[0]


def _check_job_exists(tree: ast.Module, names: _Names, shown: str) -> None:
    if names.bound["job"] or names.bound["*"] or names.bound["__getattr__"]:
        return
    if any(isinstance(node, ast.Name) and node.id in _DYNAMIC_DEFINITIONS for node in ast.walk(tree)):
        return
    others = list(names.job_calls())
    raise no_job(shown, f"`{others[0]}`, but no `job`" if others else "no `job`")


def _check_fields(call: ast.Call, names: _Names, shown: str) -> None:
    """Check that a call of `zooid.Job` gives only fields that exist, and all that have no default."""
    where = f"{shown}, line {call.lineno}"
    fields = {field.name: field for field in dataclasses.fields(Job)}
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    for name in given:
        if name not in fields:
            similar = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"it has {', '.join(fields)}"
            raise JobError(f"{where}: zooid.Job has no field {name}; {hint}")
    if call.args and not isinstance(call.args[0], ast.Starred):
        raise JobError(f"{where}: zooid.Job takes its fields by name: zooid.Job(model=…, loss=…, data=…, …)")
    takes_more = len(given) < len(call.keywords) or bool(call.args)
    missing = [
        name
        for name, field in fields.items()
        if name not in given and field.default is field.default_factory is dataclasses.MISSING
    ]
    if missing and not takes_more:
        noun, pronoun = ("field", "it") if len(missing) == 1 else ("fields", "them")
        raise JobError(f"{where}: zooid.Job lacks the {noun} {', '.join(missing)}; every job has to give {pronoun}")
    if "model" in given and (built := names.built_model(given["model"])):
        raise JobError(f"{where}: {already_built(built)}")
