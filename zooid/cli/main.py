"""The command `zooid`: what it can do, and how errors end."""

import signal
import sys
from types import FrameType

import typer
from rich.console import Console

from zooid.cli.clean import clean
from zooid.cli.plan import plan
from zooid.cli.predict import predict
from zooid.cli.probe import probe
from zooid.cli.profile import profile
from zooid.cli.rehearse import rehearse
from zooid.cli.resume import resume
from zooid.cli.save import save
from zooid.cli.timeline import timeline
from zooid.cli.train import train
from zooid.core.errors import InputError, MemberFailed, ZooidError

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help="Train deep neural networks fast and cheaply on resources that come and go.",
    epilog="Start with: zooid train examples/digits.py --layout 2x2",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(profile)
app.command()(plan)
app.command()(predict)
app.command()(rehearse)
app.command()(train)
app.command()(resume)
app.command()(save)
app.command()(timeline)
app.command()(probe)
app.command()(clean)


def main() -> None:
    """Run a command; errors that zooid raises on purpose become one clear line and a status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, _interrupt)
    errors = Console(stderr=True)
    try:
        app()
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # what typer makes of Ctrl-C
            errors.print("interrupted: all members have ended", highlight=False)
        raise
    except ZooidError as error:
        if isinstance(error, MemberFailed) and error.traceback_text:
            errors.print(error.traceback_text, highlight=False, markup=False, style="dim")
        errors.print(f"error: {error}", highlight=False, markup=False, style="bold red", soft_wrap=True)
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Being asked to end is treated as Ctrl-C: members are ended first."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
