"""The statements of a notebook that a job needs. Members execute these and nothing else.

Statements are selected backward from the job's variable, as a compiler computes live variables. Selected are those that
bind or change a name that is needed, and what they need in turn. Plots, other training loops and calls of zooid are
left out.
"""

import ast
import symtable
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Statement:
    """One statement at the top level of a cell."""

    cell: int
    text: str
    binds: frozenset[str]
    changes: frozenset[str]
    """Names whose objects it may change in place."""
    uses: frozenset[str]
    """Top-level names that it, or a function in it, looks up."""
    is_import: bool
    is_compound: bool
    """Whether the statement contains other statements, as a loop does."""
    is_certain: bool
    """Whether the statement always binds its names, so that earlier bindings do not matter."""


def statements_for(variable: str, cells: Sequence[str], namespace: Mapping[str, Any]) -> str | None:
    """Return the Python source that builds the variable as these cells do; None if no cell binds it.

    >>> cells = ["import math", "print(math.pi)", "size = 3", "def build(): return math.sqrt(size)", "job = build"]
    >>> print(statements_for("job", cells, {}))
    # In[1]
    import math
    # In[3]
    size = 3
    # In[4]
    def build(): return math.sqrt(size)
    # In[5]
    job = build
    <BLANKLINE>
    """
    statements = [
        statement for number, cell in enumerate(cells, 1) for statement in _statements(number, cell, namespace)
    ]
    if not any(variable in statement.binds for statement in statements):
        return None
    imported = {name for statement in statements if statement.is_import for name in statement.binds}
    chosen: list[_Statement] = []
    live = _reachable({variable}, statements)
    for statement in reversed(statements):
        # a loop that calls functions of a module is more likely to compute than to set something that the job needs
        changes = statement.changes - imported if statement.is_compound else statement.changes
        if not live & (statement.binds | changes):
            continue
        chosen.append(statement)
        if statement.is_certain:
            live -= statement.binds
        live |= _reachable(statement.uses | statement.changes, statements)
    lines: list[str] = []
    for statement in reversed(chosen):
        heading = f"# In[{statement.cell}]"
        if heading not in lines:
            lines.append(heading)
        lines.append(statement.text)
    return "\n".join(lines) + "\n"


def _reachable(names: Iterable[str], statements: Sequence[_Statement]) -> set[str]:
    """Return these names and all names that their functions look up when they are called."""
    reachable: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        reachable.add(name)
        for statement in statements:
            if name in statement.binds:
                pending |= statement.uses - reachable
    return reachable


def _statements(number: int, cell: str, namespace: Mapping[str, Any]) -> Iterator[_Statement]:
    try:
        nodes = ast.parse(cell).body
    except SyntaxError:  # the cell failed, so it bound nothing
        return
    for node in nodes:
        if _is_call_of_zooid(node, namespace):
            continue
        text = _text(node, cell)
        table = symtable.symtable(text, "cell", "exec")
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        binds = frozenset(symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or is_import)
        uses = frozenset(_looked_up(table))
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        is_assignment = isinstance(node, ast.Assign | ast.AnnAssign)
        is_compound = not is_definition and hasattr(node, "body")
        # all imports are kept: a setting such as torch.set_default_dtype may lie between two of the same module
        is_certain = is_definition or is_assignment
        yield _Statement(number, text, binds, frozenset(_changed(node)), uses, is_import, is_compound, is_certain)


def _text(node: ast.stmt, cell: str) -> str:
    decorators = getattr(node, "decorator_list", [])
    parts = [f"@{ast.get_source_segment(cell, decorator)}" for decorator in decorators]
    return "\n".join([*parts, ast.get_source_segment(cell, node) or ast.unparse(node)])


def _looked_up(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _looked_up(child)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names whose objects a statement may change: `config["lr"] = 1`, `words.append(word)`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for inner in ast.walk(node):
        target: ast.expr | None = None
        if isinstance(inner, ast.Attribute | ast.Subscript) and isinstance(inner.ctx, ast.Store | ast.Del):
            target = inner.value
        elif isinstance(inner, ast.AugAssign):
            target = inner.target
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            target = inner.value.func if isinstance(inner.value.func, ast.Attribute) else None
        if target is not None and (root := _root(target)) is not None:
            yield root


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_call_of_zooid(node: ast.stmt, namespace: Mapping[str, Any]) -> bool:
    """Whether the statement only calls one of zooid's own functions, as `zooid.train(job)` does."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    names: list[str] = []
    called = node.value.func
    while isinstance(called, ast.Attribute):
        names.insert(0, called.attr)
        called = called.value
    function = namespace.get(called.id) if isinstance(called, ast.Name) else None
    for name in names:
        function = getattr(function, name, None)
    return str(getattr(function, "__module__", "")).startswith("zooid.")
