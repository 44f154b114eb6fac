"""A file or a class is found by its name, and everything in the package is there for somebody."""

import ast
from pathlib import Path

import pytest

import zooid
import zooid.comm
from tests.unit.code_graph import (
    PACKAGE,
    Module,
    Symbol,
    public_definitions,
    reached_symbols,
    read_modules,
    repeated,
)
from zooid.cli.main import COMMANDS

SIBLINGS = {
    "planner": (
        {"fleets", "partition", "sites", "stage_sizes"},
        {"problem.py", "arrays.py", "bounds.py", "search.py", "answer.py"},
    ),
    "report": ({"prediction", "profile", "search", "timeline"}, {"rows.py", "table.py", "page.py"}),
}
"""Folders side by side that have the same set of files."""
OPTIONAL = {"report": {"picture.py"}}
"""Files of the set that a sibling may lack: the page of timelines draws its own."""
ROAD = "planner/search.py"
"""The search for a plan, which asks the searches of the folders beside it."""
SENT = (
    "zooid.entry.machine_agent",
    "zooid.entry.bootstrap",
    "zooid.entry.batch_job",
    "zooid.entry.container_member",
    "zooid.entry.lambda_handler",
)
"""Programs whose texts are sent to other machines, or copied into images, and executed there."""
WAITING = {
    "zooid.schedule.site_hierarchy": "members at several sites",
}
"""Modules and definitions that nothing reaches yet, and the capability that will."""


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules()


def test_file_names_occur_once_but_for_the_sets_of_siblings() -> None:
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    shared = {
        Path(room, folder, name): name not in OPTIONAL.get(room, ())
        for room, (folders, names) in SIBLINGS.items()
        for folder in folders
        for name in names | OPTIONAL.get(room, set())
    }
    assert {path for path, is_required in shared.items() if is_required} <= set(paths)
    others = [path for path in paths if path not in shared]
    assert repeated([(path.name, str(path)) for path in others]) == {}
    names = {name for _, names in SIBLINGS.values() for name in names}
    assert [str(path) for path in others if path.name in names] == [ROAD]


def test_public_class_names_occur_once(modules: dict[str, Module]) -> None:
    classes = [
        (definition, name)
        for name, module in modules.items()
        for definition, node in module.definitions.items()
        if isinstance(node, ast.ClassDef) and not definition.startswith("_")
    ]
    assert repeated(classes) == {}


def test_everything_is_reached_from_a_command_a_public_name_or_a_member_program(modules: dict[str, Module]) -> None:
    reached = reached_symbols(modules, roots(modules))
    unreached = [
        f"{name}.{definition}" if definition else name
        for name, module in modules.items()
        for definition in ("", *public_definitions(module))
        if (name, definition) not in reached
    ]
    excused = tuple(WAITING)
    assert [name for name in unreached if not name.startswith(excused)] == []
    assert all(any(name.startswith(excuse) for name in unreached) for excuse in excused), "an excuse is not needed"


def roots(modules: dict[str, Module]) -> list[Symbol]:
    commands = [(f"zooid.cli.{name}_command", name) for name in COMMANDS]
    names = [*(("zooid", name) for name in zooid.__all__), *(("zooid.comm", name) for name in zooid.comm.__all__)]
    names += [("zooid.core.jobs.scaling", name) for name in zooid.scaling.__all__]
    programs = [name for name in modules if name.endswith(".__main__")] + ["zooid.platforms.local.zygote", *SENT]
    started = [(name, definition) for name in programs for definition in ("", *modules[name].definitions)]
    return [("zooid.cli.main", "main"), *commands, *names, *started]
