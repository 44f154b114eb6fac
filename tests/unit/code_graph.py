"""The package as a graph of definitions: which of them a command, a public name or a member program can reach."""

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import zooid

PACKAGE = Path(zooid.__file__).parent

Symbol = tuple[str, str]
"""A module and the name of a definition at its top level; the name is empty for the code that runs on import."""


@dataclass
class Module:
    """What a file defines at its top level, and what each definition refers to."""

    name: str
    tree: ast.Module
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, Symbol] = field(default_factory=dict)
    """Local names of the file and what they stand for."""

    @property
    def package(self) -> str:
        return self.name.rpartition(".")[0]


def read_modules(package: Path = PACKAGE) -> dict[str, Module]:
    """Parse every file of the package."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        modules[name] = Module(name, ast.parse(path.read_text()))
    for module in modules.values():
        for statement in module.tree.body:
            for name in _defined_names(statement):
                module.definitions[name] = statement
        for node in ast.walk(module.tree):
            _add_imports(module, node, modules)
    return modules


def reached_symbols(modules: dict[str, Module], roots: list[Symbol]) -> set[Symbol]:
    """All definitions that the roots refer to, directly or through other definitions."""
    reached: set[Symbol] = set()
    waiting = list(roots)
    while waiting:
        symbol = waiting.pop()
        if symbol in reached:
            continue
        reached.add(symbol)
        waiting += _references(modules, symbol)
    return reached


def public_definitions(module: Module) -> list[str]:
    """Functions and classes of a module whose names have no underscore."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [name for name, node in module.definitions.items() if isinstance(node, kinds) and not name.startswith("_")]


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _add_imports(module: Module, node: ast.AST, modules: dict[str, Module]) -> None:
    if isinstance(node, ast.ImportFrom) and node.module in modules:
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            is_module = submodule in modules and alias.name not in modules[node.module].definitions
            is_module = is_module and alias.name not in _exported(modules[node.module])
            symbol = (submodule, "") if is_module else (node.module, alias.name)
            module.imported[alias.asname or alias.name] = symbol
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in modules:
                module.imported[alias.asname or alias.name] = (alias.name, "")


def _exported(module: Module) -> set[str]:
    """Names that a package takes from its modules, at once or when they are first used."""
    imports = [node for node in module.tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names} | _lazy_names(module).keys()


def _lazy_names(module: Module) -> dict[str, str]:
    """Names of a package that are loaded when they are first used, and their modules."""
    tables = [node for node in ast.walk(module.tree) if isinstance(node, ast.Dict)]
    return {
        key.value: value.value
        for table in tables
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
        if isinstance(key.value, str) and isinstance(value.value, str)
    }


def _references(modules: dict[str, Module], symbol: Symbol) -> list[Symbol]:
    name, definition = symbol
    module = modules.get(name)
    if module is None:
        return []
    found: list[Symbol] = [(name, "")]
    if module.package in modules:
        found.append((module.package, ""))
    if not definition:
        for statement in module.tree.body:
            if _defined_names(statement) == ["__all__"]:
                continue  # offering a name is no use of it
            if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                found += _names_in(modules, module, statement, is_on_import=True)
            else:
                for outer in [*statement.decorator_list, *getattr(statement, "bases", [])]:
                    found += _names_in(modules, module, outer)
                if any(map(_registers, statement.decorator_list)):
                    found.append((name, statement.name))
        return found
    if definition in module.definitions:
        return [*found, *_names_in(modules, module, module.definitions[definition])]
    if definition in module.imported:
        return [*found, module.imported[definition]]
    return [*found, (_lazy_names(module).get(definition, ""), definition)]


def _registers(decorator: ast.expr) -> bool:
    """Whether something may call the function because of this decorator, such as `app.callback()`."""
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute)


def _names_in(modules: dict[str, Module], module: Module, node: ast.AST, *, is_on_import: bool = False) -> list[Symbol]:
    if is_on_import and isinstance(node, ast.ImportFrom | ast.Import):
        found = []
        for alias in node.names:
            target = node.module if isinstance(node, ast.ImportFrom) else alias.name
            if target in modules:
                found.append((target, ""))
        return found
    found = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            if inner.id in module.definitions:
                found.append((module.name, inner.id))
            elif inner.id in module.imported:
                found.append(module.imported[inner.id])
        elif isinstance(inner, ast.Attribute):
            found += _attribute(modules, module, inner)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            text = inner.value
            if text in modules:
                found.append((text, ""))
            elif text.isidentifier() and text in module.definitions:
                found.append((module.name, text))  # an annotation in quotes
            elif text.isidentifier() and text in module.imported:
                found.append(module.imported[text])
    return found


def _attribute(modules: dict[str, Module], module: Module, node: ast.Attribute) -> list[Symbol]:
    """`a.b.c` where `a.b` is a module of the package."""
    parts: list[str] = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name):
        return []
    chain = [value.id, *reversed(parts)]
    if chain[0] in module.imported and not module.imported[chain[0]][1]:
        chain = [*module.imported[chain[0]][0].split("."), *chain[1:]]
    for length in range(len(chain) - 1, 0, -1):
        if ".".join(chain[:length]) in modules:
            return [(".".join(chain[:length]), chain[length])]
    return []


def repeated(names: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that occur in several places, and where."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, where in names:
        places[name].append(where)
    return {name: own for name, own in places.items() if len(own) > 1}
