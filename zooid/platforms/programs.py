"""Texts of programs that are sent to other machines, on which nothing of zooid is installed."""

from functools import cache
from importlib import resources

_FUTURE = "from __future__ import annotations\n"


@cache
def agent_program() -> str:
    """Return the text of the program that serves on another machine."""
    names = ("machine_folder", "machine_facts", "machine_agent")
    return "\n".join((_FUTURE, *(program_text("zooid.entry", name) for name in names), "serve()\n"))


@cache
def bootstrap_program() -> str:
    """Return the text of the program that brings zooid to another machine; its order follows it."""
    parts = (("zooid.entry", "machine_folder"), ("zooid.store", "cloud_logins"), ("zooid.entry", "bootstrap"))
    return "\n".join((_FUTURE, *(program_text(*part) for part in parts)))


def program_text(package: str, module: str) -> str:
    """Return the text of a module without what may only stand at the beginning of a program."""
    return resources.files(package).joinpath(f"{module}.py").read_text().replace(_FUTURE, "")
