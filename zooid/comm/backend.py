"""Makes `dist.init_process_group("zooid", init_method="s3://…")` work like any other backend."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from torch import distributed as dist
from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]  # exported, but not in __all__

from zooid.comm.c10d_store import DEFAULT_TIMEOUT_S, ObjectRendezvous
from zooid.comm.group_options import Options
from zooid.comm.process_group import ProcessGroup
from zooid.comm.rendezvous import leave, meet
from zooid.comm.store.store_transport import StoreTransport
from zooid.comm.tcp import connect
from zooid.comm.traffic_counter import Counter
from zooid.comm.transport_protocol import Transport
from zooid.core import environment
from zooid.core.abort import Abort
from zooid.core.errors import InputError
from zooid.core.text import quoted
from zooid.core.units import small_number
from zooid.store import open_store

_torch_rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # a function hides the module

BACKEND = "zooid"
SCHEMES = ("s3", "gs", "az")
_FOLDER_SUFFIX = ".zooid"
"""The folder beside torch's own file, for a file:// URL."""

_file_options: dict[str, Options] = {}
"""By path: what follows the question mark of a file:// URL, which torch's own handler drops."""
_meetings: list[ObjectRendezvous] = []
"""Where groups of this process meet, until they are destroyed: torch itself keeps only a store's C++ half alive."""
_file_meetings: dict[str, ObjectRendezvous] = {}
"""By path: where the groups of this process meet beside torch's own file."""


def register() -> None:
    """Tell torch.distributed about the backend and its URLs; once per process."""
    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    for scheme in SCHEMES:
        _torch_rendezvous.register_rendezvous_handler(scheme, _meet_in_store)
    handlers = _torch_rendezvous._rendezvous_handlers
    handlers["file"] = _KeepingOptions(handlers["file"])


@dataclass(frozen=True)
class _KeepingOptions:
    """torch's handler of file:// URLs, which still meets through its own file; our options are noted on the way."""

    handler: Any

    def __call__(self, url: str, **others: Any) -> Any:
        plain_url, query = _split(url)
        rank, size = _take_rank(query, url)
        _file_options[urlsplit(plain_url).path] = Options.from_query(query, url)
        return self.handler(f"{plain_url}?rank={rank}&world_size={size}", **others)


def _meet_in_store(
    url: str, timeout: timedelta = timedelta(seconds=DEFAULT_TIMEOUT_S), **_: Any
) -> Iterator[tuple[ObjectRendezvous, int, int]]:
    store_url, query = _split(url)
    rank, size = _take_rank(query, url)
    yield _meet(store_url, rank, size, timeout.total_seconds(), Options.from_query(query, url)), rank, size
    raise RuntimeError("a group that has met cannot meet again; destroy it and begin anew")


def _take_rank(query: dict[str, str], url: str) -> tuple[int, int]:
    """Rank and world size, from the URL, where torch puts what it was given, or from the environment."""
    numbers = []
    for parameter, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        given = query.pop(parameter, None)
        number = environment.torch_number(variable) if given is None else small_number(given)
        if given is not None and number is None:
            raise InputError(f"{quoted(url)!r} has the {parameter} {quoted(given)!r}; it must be a number")
        if number is None:
            raise InputError(f"give init_process_group a {parameter}, or set {variable}, as torchrun does")
        numbers.append(number)
    rank, size = numbers
    if not 0 <= rank < size:
        raise InputError(f"rank {rank} is not one of a world of {size}; ranks begin at 0")
    return rank, size


def _meet(store_url: str, rank: int, size: int, timeout_s: float, options: Options) -> ObjectRendezvous:
    objects = open_store(store_url)
    abort = Abort()
    session = meet(objects, rank, size, timeout_s=timeout_s, abort=abort)
    meeting = ObjectRendezvous(
        objects,
        session.prefix,
        timeout_s=timeout_s,
        abort=abort,
        options=options,
        latency_s=session.latency_s,
        lobby=session.lobby,
    )
    _meetings.append(meeting)
    return meeting


def _split(url: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InputError(
            f"{quoted(url)!r} is not a URL: {quoted(str(error))}; give one such as s3://bucket/run-7"
        ) from error
    return urlunsplit(parts._replace(query="")), dict(parse_qsl(parts.query, keep_blank_values=True))


def _create(group: Any, group_options: Options | None) -> ProcessGroup:
    """A process group, for the default group and for every `new_group`."""
    if group_options is not None and not isinstance(group_options, Options):
        raise InputError(f"pg_options is a {type(group_options).__name__}; the backend takes zooid.comm.Options")
    is_default = not group.global_ranks_in_group
    meeting = _meeting_of(group, is_default)
    rank, size, timeout_s = group.group_rank, group.group_size, group.timeout.total_seconds()
    abort = meeting.abort if meeting else Abort()
    # torch's own file may hold what an earlier run left in it; the session's objects do not.
    kept = _Meeting(f"group-{group.group_id}", meeting or group.store, group.store)
    counter = Counter()
    options = group_options or (meeting.options if meeting else Options(transport="tcp"))
    transport: Transport
    if options.transport == "tcp":
        transport, latency_s = connect(kept, rank, size, options, timeout_s=timeout_s, abort=abort, counter=counter)
    elif meeting is None:
        raise InputError(
            f"this group meets through a {type(_unwrapped(group.store)).__name__}, which holds no messages; use "
            "pg_options=zooid.comm.Options(transport='tcp'), or a URL of an object store as init_method"
        )
    else:
        prefix = f"{meeting.prefix}/group-{group.group_id}"
        transport = StoreTransport(meeting.objects, prefix, rank, timeout_s=timeout_s, counter=counter)
        latency_s = meeting.latency_s

    def on_left() -> None:
        if meeting is not None and (is_default or options.transport == "store"):
            prefixes = meeting.prefixes if is_default else (f"{meeting.prefix}/group-{group.group_id}",)
            leave(meeting.objects, prefixes, rank, size, timeout_s=timeout_s)
        if is_default and meeting is not None:
            _forget(meeting)

    return ProcessGroup(
        transport,
        rank,
        size,
        abort=abort,
        timeout_s=timeout_s,
        options=options,
        latency_s=latency_s,
        counter=counter,
        on_left=on_left,
        meeting=kept,
    )


class _Meeting(PrefixStore):
    """The group's own part of the store, which keeps the Python half of the whole store alive."""

    def __init__(self, prefix: str, store: Any, *kept: object) -> None:
        super().__init__(prefix, store)
        self._kept = (store, *kept)


def _meeting_of(group: Any, is_default: bool) -> ObjectRendezvous | None:
    """Where the group meets; None where its store is not one of objects."""
    store = _unwrapped(group.store)
    if isinstance(store, ObjectRendezvous):
        return store
    if not isinstance(store, FileStore):
        return None
    path: str = store.path  # type: ignore[attr-defined]  # the stub lacks it
    if is_default:
        url = f"file://{path}{_FOLDER_SUFFIX}"
        options = _file_options.get(path, Options())
        _file_meetings[path] = _meet(url, group.group_rank, group.group_size, group.timeout.total_seconds(), options)
    if path not in _file_meetings:
        raise InputError(
            "the default group is of another backend and meets through a file; let the default group be of the "
            "backend zooid, or give this one a store of objects"
        )
    return _file_meetings[path]


def _forget(meeting: ObjectRendezvous) -> None:
    """The default group is gone, and with it whatever kept its meeting; a folder that was made for it goes, too."""
    if meeting in _meetings:
        _meetings.remove(meeting)
    for path in [path for path, kept in _file_meetings.items() if kept is meeting]:
        del _file_meetings[path]
        with contextlib.suppress(OSError):  # other ranks are not done yet, and the last one removes it
            os.rmdir(path + _FOLDER_SUFFIX)


def _unwrapped(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
