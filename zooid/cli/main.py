"""The command `zooid`: its subcommands, and the exit status of errors."""

import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from zooid.core.errors import InputError, ZooidError
from zooid.report import say

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
"""Exit status that typer gives to Ctrl-C."""
EXIT_SIGNAL = 128
"""Added to the number of the signal that ended the command, as shells do."""
VERBOSE = "--verbose"
COMMANDS = (
    "profile",
    "plan",
    "predict",
    "rehearse",
    "train",
    "scale",
    "watch",
    "stop",
    "resume",
    "save",
    "timeline",
    "probe",
    "catalog",
    "clean",
)
"""The commands in the order of the help. Each has its own file, such as `plan_command.py`."""
OBSERVERS = ("scale", "watch", "stop")
"""Commands that have started no member, and leave those of the run alone when they are interrupted."""

app = typer.Typer(
    epilog="Start with: zooid train examples/digits.py --layout 2x2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def everywhere(
    verbose: Annotated[
        bool, typer.Option(VERBOSE, help="Show the full traceback of an error. May stand anywhere in a command.")
    ] = False,
) -> None:
    """Train deep neural networks fast and cheaply on resources that come and go."""


def register(words: Sequence[str]) -> None:
    """Import the command that these words name, or all commands if they name none."""
    named = next((word for word in words if not word.startswith("-")), "")
    for name in (named,) if named in COMMANDS else COMMANDS:
        app.command()(getattr(importlib.import_module(f"zooid.cli.{name}_command"), name))


def main() -> None:
    """Run a command. Errors that zooid raises on purpose become one clear line and an exit status."""
    signals: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        """Treat a request to end as Ctrl-C, so that members are ended first."""
        signals.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, interrupt)
    errors = Console(stderr=True)
    words = [word for word in sys.argv[1:] if word != VERBOSE]
    is_verbose = VERBOSE in sys.argv[1:]
    try:
        register(words)
        app(words)
    except SystemExit as end:
        if end.code != EXIT_INTERRUPTED:
            raise
        if words[:1] and words[0] not in OBSERVERS:
            say(errors, "interrupted: all members have ended")
        sys.exit(EXIT_SIGNAL + (signals[0] if signals else signal.SIGINT))
    except ZooidError as error:
        details = error.traceback_text or traceback.format_exc() if is_verbose else error.details
        _print_error(errors, details, str(error))
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED)
    except OSError as error:
        _print_error(errors, traceback.format_exc() if is_verbose else "", str(error))
        sys.exit(EXIT_FAILED)


def _print_error(errors: Console, details: str, message: str) -> None:
    if details:
        say(errors, details.rstrip(), "dim")
    say(errors, f"error: {message}", "bold red")


if __name__ == "__main__":
    main()
