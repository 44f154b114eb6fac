"""Programs for other machines are made of several texts, and each finds the names of the others."""

import ast
from collections.abc import Callable

import pytest

from zooid.platforms.programs import actor_program, agent_program, bootstrap_program


@pytest.mark.parametrize("program", [agent_program, actor_program, bootstrap_program])
def test_a_program_defines_what_its_parts_expect_of_one_another(program: Callable[[], str]) -> None:
    tree = ast.parse(program())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    expected = {
        alias.name
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert expected
    assert expected <= defined
