"""`zooid profile`: measure a job's layers, unless the last profile is still valid."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

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
        Path | None, typer.Option(help="File of the profile, for a single offer.", show_default="JOB.profile.json")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="File to which the picture is written, as an HTML page.", show_default="beside the profile"),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again, and replace existing files.")] = False,
    store: options.Store = None,
    on: Annotated[
        list[str] | None,
        typer.Option(help="Where to measure: local, or limited:OFFER for its size; repeatable.", show_default="local"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a job, and measure its layers and the links to the store. A profile that is still valid is kept.

    Example: zooid profile examples/digits.py
    """
    console = Console()
    messages = Console(stderr=True) if as_json else console
    names = on or ["local"]
    files = _files(job, list(resolve_offers(names)), out, picture)
    for offer_files in files.values():
        _check_writable(offer_files, job)
    known: dict[str, Profile] = {}
    for name, offer_files in files.items():
        if not again and (profile := _read_known(offer_files.profile, job.stem, messages)) is not None:
            known[name] = profile
    with view_for(messages, as_json=False) as view:
        measured = coordinator.profiles(job, on=names, store=store, known=known, on_event=view.show)
    _write(files, measured, known)
    for name in files:
        say(messages, (f"{name}: " if len(files) > 1 else "") + _status(measured[name], known.get(name)))
    if as_json:
        console.file.write(_as_json(measured))
        return
    console.print(profile_table(*measured.values()) if len(files) == 1 else offers_table(measured))
    for offer_files in files.values():
        say(console, f"profile: {offer_files.profile}\npicture: {offer_files.page}")


class _Files(NamedTuple):
    profile: Path
    page: Path


def _files(job: Path, names: list[str], out: Path | None, picture: Path | None) -> dict[str, _Files]:
    if len(names) == 1:
        target = out or Path(f"{job.stem}.profile.json")
        return {names[0]: _Files(target, picture or target.with_suffix(".html"))}
    if out is not None or picture is not None:
        raise InputError(
            f"--out and --picture name the files of one offer, but --on names {len(names)}; leave them out: the files "
            f"are then {job.stem}.OFFER.profile.json and {job.stem}.OFFER.profile.html in this folder"
        )
    stems = {name: f"{job.stem}.{name}.profile" for name in names}
    return {name: _Files(Path(f"{stem}.json"), Path(f"{stem}.html")) for name, stem in stems.items()}


def _write(files: Mapping[str, _Files], measured: Mapping[str, Profile], known: Mapping[str, Profile]) -> None:
    """Write all files or none; a profile that is still valid stays unchanged."""
    with ExitStack() as staged:
        for name, target in files.items():
            if measured[name] != known.get(name):
                staged.enter_context(replaced_whole(target.profile)).write_bytes(encode_record(measured[name]))
            staged.enter_context(replaced_whole(target.page)).write_text(profile_page(measured[name]), encoding="utf-8")


def _status(measured: Profile, known: Profile | None) -> str:
    if known is None:
        return "measured"
    if measured == known:
        return f"nothing has changed since {measured.date}, so the profile is still valid; --again measures again"
    return f"measured again, because the job or the machine has changed since the profile of {known.date}"


def _as_json(measured: Mapping[str, Profile]) -> str:
    """Encode one profile like its file, or several by offer."""
    if len(measured) == 1:
        return encode_record(*measured.values()).decode()
    return msgspec.json.format(msgspec.json.encode(measured), indent=2).decode() + "\n"


def _read_known(file: Path, job: str, messages: Console) -> Profile | None:
    """Read an existing profile, to keep it if it is still valid; reject an unreadable one instead of replacing it."""
    if not file.exists():
        return None
    try:
        known = options.read_file(file, Profile)
    except OlderRecord:
        say(messages, f"{file} was written by an older zooid: measuring again")
        return None
    except RecordError as error:
        raise InputError(f"{error}; the file is left as it is: --again measures again and replaces it") from error
    if known.job != job:
        raise InputError(
            f"{file} is the profile of the job {known.job}, not of {job}; name another file with --out, move this one "
            "away, or replace it with --again"
        )
    return known


def _check_writable(files: _Files, job: Path) -> None:
    """Reject files that cannot be written, before minutes are spent on measuring."""
    for file in files:
        if file.is_dir() or not file.parent.is_dir():
            raise InputError(f"{file} cannot be written; give a file in a folder that exists")
    if len({file.resolve() for file in (*files, job)}) < 3:
        raise InputError(
            f"the job {job}, its profile {files.profile} and the picture {files.page} must be three files; name them "
            "with --out and --picture"
        )
