"""Texts of programs that are sent to other machines, on which nothing of zooid is installed."""

from functools import cache
from importlib import resources

_FUTURE = "from __future__ import annotations\n"
_AGENT = ("machine_folder", "machine_facts", "machine_agent")


@cache
def agent_program() -> str:
    """Return the text of the program that serves on another machine."""
    return f"{actor_program()}\nserve()\n"


@cache
def actor_program() -> str:
    """Return the text of the agent's functions without its server loop, for a program that calls them itself."""
    return "\n".join((_FUTURE, *(program_text("zooid.entry", name) for name in _AGENT)))


@cache
def bootstrap_program() -> str:
    """Return the text of the program that brings zooid to another machine; its order follows it."""
    parts = (("zooid.entry", "machine_folder"), ("zooid.store", "cloud_logins"), ("zooid.entry", "bootstrap"))
    return "\n".join((_FUTURE, *(program_text(*part) for part in parts)))


@cache
def container_program() -> str:
    """Return the text of the program that brings zooid to a rented container or function."""
    return f"{bootstrap_program()}\n{program_text('zooid.entry', 'container_member')}"


def program_text(package: str, module: str) -> str:
    """Return the text of a module without its `__future__` import, which only the start of a program may have."""
    return resources.files(package).joinpath(f"{module}.py").read_text().replace(_FUTURE, "")
