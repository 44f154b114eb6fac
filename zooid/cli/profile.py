"""`zooid profile`: measure a job's layers, or find that nothing has changed since the last time."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.core.errors import InputError, OlderRecord, RecordError
from zooid.core.files import replaced_whole
from zooid.core.profile import Profile
from zooid.core.records import encode_record
from zooid.report import profile_page, profile_table, view_for, write_page


def profile(
    job: options.JobFile,
    out: Annotated[Path | None, typer.Option(help="Where the profile lies; JOB.profile.json if not given.")] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Where to write the page to look at; beside the profile, as .html, if not given."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure anew, and replace whatever is there.")] = False,
    store: options.Store = None,
    on: options.On = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a job and measure its layers, and the way to the store; a profile that still holds is kept.

    Example: zooid profile examples/digits.py
    """
    console = Console()
    words = Console(stderr=True) if as_json else console
    target = out or Path(f"{job.stem}.profile.json")
    page_file = picture or target.with_suffix(".html")
    _refuse_unusable(target, page_file, job)
    known = None if again else _known(target, job.stem, words)
    with view_for(words, as_json=False) as view:
        found = coordinator.profile(job, store=store, on=on or "local", known=known, on_event=view.show)
    page = profile_page(found)
    if found == known:
        write_page(page_file, page)
        _say(words, f"nothing has changed since {found.date}: the profile still holds; --again measures anew")
    else:
        with replaced_whole(target) as staged:
            staged.write_bytes(encode_record(found))
            write_page(page_file, page)
        _say(
            words,
            "measured" if known is None else f"measured anew: what the profile of {known.date} rests on has changed",
        )
    if as_json:
        console.file.write(encode_record(found).decode())
        return
    console.print(profile_table(found))
    _say(console, f"profile: {target}\npicture: {page_file}")


def _known(file: Path, job: str, words: Console) -> Profile | None:
    """The profile that is there, to be kept if it still holds. One that cannot be read is not overwritten unasked."""
    if not file.exists():
        return None
    try:
        known = options.read_file(file, Profile)
    except OlderRecord:
        _say(words, f"{file} was written by an older zooid: measuring anew")
        return None
    except RecordError as error:
        raise InputError(f"the file is left as it is, --again measures anew and replaces it: {error}") from error
    if known.job != job:
        raise InputError(
            f"{file} is the profile of the job {known.job}, not of {job}; name another file with --out, or replace "
            "this one with --again"
        )
    return known


def _refuse_unusable(target: Path, page_file: Path, job: Path) -> None:
    """Before minutes are spent on measuring."""
    for file in (target, page_file):
        if file.is_dir() or not file.parent.is_dir():
            raise InputError(f"{file} cannot be written; give a file in a folder that exists")
    if len({file.resolve() for file in (target, page_file, job)}) < 3:
        raise InputError(
            f"the job {job}, its profile {target} and the picture {page_file} must be three files; name them with "
            "--out and --picture"
        )


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
