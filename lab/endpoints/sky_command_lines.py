"""The command lines of SkyPilot 0.14.1 that its stand-in accepts: its own words, and of its options those in use.

A test holds them against SkyPilot's own command.
"""

from collections.abc import Sequence
from typing import Any

import click

_OUTPUT = click.Option(["--output", "-o"], type=click.Choice(["table", "json"]), default="table")
_CLUSTERS = click.Argument(["clusters"], nargs=-1, required=False)
_TAIL = click.Option(["--tail"], type=int)
_FOLLOW = click.Option(["--follow/--no-follow"], default=True)
_COMMANDS: dict[tuple[str, ...], list[click.Parameter]] = {
    ("launch",): [
        click.Argument(["entrypoint"], nargs=-1, required=False),
        click.Option(["--cluster", "-c"]),
        click.Option(["--dryrun"], is_flag=True),
        click.Option(["--detach-run", "-d/-no-d"], is_flag=True),
        click.Option(["--async/--no-async", "is_async"], default=False),
        click.Option(["--idle-minutes-to-autostop", "-i"], type=int),
        click.Option(["--down"], is_flag=True),
        click.Option(["--yes", "-y"], is_flag=True),
    ],
    ("status",): [_CLUSTERS, _OUTPUT, click.Option(["--refresh", "-r"], is_flag=True)],
    ("queue",): [_CLUSTERS, _OUTPUT],
    ("down",): [
        _CLUSTERS,
        click.Option(["--async/--no-async", "is_async"], default=False),
        click.Option(["--yes", "-y"], is_flag=True),
    ],
    ("cost-report",): [_OUTPUT, click.Option(["--days"], type=int, default=30)],
    ("logs",): [click.Argument(["cluster"]), click.Argument(["job_ids"], nargs=-1), _FOLLOW, _TAIL],
    ("api", "status"): [
        click.Argument(["ids"], nargs=-1, required=False),
        _OUTPUT,
        click.Option(["--all-status", "-a"], is_flag=True),
        click.Option(["--limit", "-l"], default="10"),
        click.Option(["--cluster", "-c"]),
    ],
    ("api", "logs"): [click.Argument(["request_id"], required=False), _FOLLOW, _TAIL],
    ("api", "cancel"): [
        click.Argument(["ids"], nargs=-1, required=False),
        click.Option(["--yes", "-y"], is_flag=True),
    ],
}


class WrongCommandLine(Exception):
    """A command line that SkyPilot would not accept, or that zooid has no need of."""


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the command, its words joined by a space, and its options by name."""
    for words, params in _COMMANDS.items():
        if tuple(arguments[: len(words)]) == words:
            command = click.Command(" ".join(words), params=params)
            try:
                context = command.make_context(" ".join(words), list(arguments[len(words) :]))
            except click.ClickException as error:
                raise WrongCommandLine(error.format_message()) from error
            return " ".join(words), dict(context.params)
    raise WrongCommandLine(f"No such command '{' '.join(arguments[:1])}'.")
