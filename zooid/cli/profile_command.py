"""`zooid profile`: measure a job's layers, or find that nothing has changed since the last time."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.coordinator.plans.offer_names import resolve_offers
from zooid.core.errors import InputError, OlderRecord, RecordError
from zooid.core.files import replaced_whole
from zooid.core.plans.profile import Profile
from zooid.core.records import encode_record
from zooid.report import offers_table, profile_page, profile_table, say, view_for


def profile(
    job: options.JobFile,
    out: Annotated[
        Path | None, typer.Option(help="Where the profile of a single offer lies; JOB.profile.json if not given.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Where to write the page to look at; beside the profile, as .html, if not given."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure anew, and replace whatever is there.")] = False,
    store: options.Store = None,
    on: Annotated[
        list[str] | None,
        typer.Option(help="Where to measure: local (if not given), limited:OFFER for its size; once for every offer."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a job and measure its layers, and the way to the store; a profile that still holds is kept.

    Example: zooid profile examples/digits.py
    """
    console = Console()
    words = Console(stderr=True) if as_json else console
    ons = on or ["local"]
    files = _files(job, list(resolve_offers(ons)), out, picture)
    for each in files.values():
        _refuse_unusable(each, job)
    held = {name: None if again else _known(each.profile, job.stem, words) for name, each in files.items()}
    known = {name: profile for name, profile in held.items() if profile is not None}
    with view_for(words, as_json=False) as view:
        found = coordinator.profiles(job, on=ons, store=store, known=known, on_event=view.show)
    _write(files, found, known)
    for name in files:
        say(words, (f"{name}: " if len(files) > 1 else "") + _news(found[name], known.get(name)))
    if as_json:
        console.file.write(_as_json(found))
        return
    console.print(profile_table(*found.values()) if len(files) == 1 else offers_table(found))
    for each in files.values():
        say(console, f"profile: {each.profile}\npicture: {each.page}")


@dataclass(frozen=True)
class _Files:
    """Of one offer."""

    profile: Path
    page: Path


def _files(job: Path, names: list[str], out: Path | None, picture: Path | None) -> dict[str, _Files]:
    if len(names) == 1:
        target = out or Path(f"{job.stem}.profile.json")
        return {names[0]: _Files(target, picture or target.with_suffix(".html"))}
    if out is not None or picture is not None:
        raise InputError(
            f"--out and --picture name the files of one offer, but --on names {len(names)}; leave them out: files are "
            f"then called {job.stem}.OFFER.profile.json and {job.stem}.OFFER.profile.html, in this folder"
        )
    stems = {name: f"{job.stem}.{name}.profile" for name in names}
    return {name: _Files(Path(f"{stem}.json"), Path(f"{stem}.html")) for name, stem in stems.items()}


def _write(files: Mapping[str, _Files], found: Mapping[str, Profile], known: Mapping[str, Profile]) -> None:
    """All of them or none; a profile that still holds is left as it is."""
    with ExitStack() as staged:
        for name, each in files.items():
            if found[name] != known.get(name):
                staged.enter_context(replaced_whole(each.profile)).write_bytes(encode_record(found[name]))
            staged.enter_context(replaced_whole(each.page)).write_text(profile_page(found[name]), encoding="utf-8")


def _news(found: Profile, known: Profile | None) -> str:
    if known is None:
        return "measured"
    if found == known:
        return f"nothing has changed since {found.date}: the profile still holds; --again measures anew"
    return f"measured anew: what the profile of {known.date} rests on has changed"


def _as_json(found: Mapping[str, Profile]) -> str:
    """One profile as its file has it; several by their offers."""
    if len(found) == 1:
        return encode_record(*found.values()).decode()
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def _known(file: Path, job: str, words: Console) -> Profile | None:
    """The profile that is there, to be kept if it still holds. One that cannot be read is not overwritten unasked."""
    if not file.exists():
        return None
    try:
        known = options.read_file(file, Profile)
    except OlderRecord:
        say(words, f"{file} was written by an older zooid: measuring anew")
        return None
    except RecordError as error:
        raise InputError(f"the file is left as it is, --again measures anew and replaces it: {error}") from error
    if known.job != job:
        raise InputError(
            f"{file} is the profile of the job {known.job}, not of {job}; name another file with --out, move this one "
            "away, or replace it with --again"
        )
    return known


def _refuse_unusable(files: _Files, job: Path) -> None:
    """Before minutes are spent on measuring."""
    for file in (files.profile, files.page):
        if file.is_dir() or not file.parent.is_dir():
            raise InputError(f"{file} cannot be written; give a file in a folder that exists")
    if len({file.resolve() for file in (files.profile, files.page, job)}) < 3:
        raise InputError(
            f"the job {job}, its profile {files.profile} and the picture {files.page} must be three files; name them "
            "with --out and --picture"
        )
