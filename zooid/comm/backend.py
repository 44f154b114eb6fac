"""Registers the backend, so that `dist.init_process_group("zooid", init_method="s3://…")` works as with any other."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
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
"""Suffix of the folder beside torch's own file, for a file:// URL."""

_file_options: dict[str, Options] = {}
"""The options in each file:// URL, by path; torch's own handler drops them."""
_rendezvous: list[ObjectRendezvous] = []
"""Stores of groups that are not destroyed yet: torch itself keeps only their C++ half alive."""
_file_rendezvous: dict[str, ObjectRendezvous] = {}
"""The store beside each of torch's own files, by path."""


def register() -> None:
    """Register the backend and its URLs with torch.distributed, once per process."""
    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    for scheme in SCHEMES:
        _torch_rendezvous.register_rendezvous_handler(scheme, _store_handler)
    handlers = _torch_rendezvous._rendezvous_handlers
    handlers["file"] = partial(_file_handler, handlers["file"])


def _file_handler(torch_handler: Any, url: str, **others: Any) -> Any:
    """Note our options in a file:// URL, and let torch's own handler do the rest."""
    plain_url, query = _split(url)
    rank, size = _take_rank(query, url)
    _file_options[urlsplit(plain_url).path] = Options.from_query(query, url)
    return torch_handler(f"{plain_url}?rank={rank}&world_size={size}", **others)


def _store_handler(
    url: str, timeout: timedelta = timedelta(seconds=DEFAULT_TIMEOUT_S), **_: Any
) -> Iterator[tuple[ObjectRendezvous, int, int]]:
    store_url, query = _split(url)
    rank, size = _take_rank(query, url)
    yield _meet(store_url, rank, size, timeout.total_seconds(), Options.from_query(query, url)), rank, size
    raise RuntimeError("a group cannot rendezvous twice; destroy it and begin anew")


def _take_rank(query: dict[str, str], url: str) -> tuple[int, int]:
    """Return rank and world size, which torch puts into the URL if the caller gave them, else from the environment."""
    numbers = []
    for parameter, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        text = query.pop(parameter, None)
        number = environment.torch_number(variable) if text is None else small_number(text)
        if text is not None and number is None:
            raise InputError(f"{quoted(url)!r} has the {parameter} {quoted(text)!r}; it must be a number")
        if number is None:
            raise InputError(f"give init_process_group a {parameter}, or set {variable}, as torchrun does")
        numbers.append(number)
    rank, size = numbers
    if not 0 <= rank < size:
        raise InputError(f"rank {rank} is not in a world of {size}; ranks begin at 0")
    return rank, size


def _meet(store_url: str, rank: int, size: int, timeout_s: float, options: Options) -> ObjectRendezvous:
    objects = open_store(store_url)
    abort = Abort()
    session = meet(objects, rank, size, timeout_s=timeout_s, abort=abort)
    rendezvous = ObjectRendezvous(
        objects,
        session.prefix,
        timeout_s=timeout_s,
        abort=abort,
        options=options,
        latency_s=session.latency_s,
        lobby=session.lobby,
    )
    _rendezvous.append(rendezvous)
    return rendezvous


def _split(url: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InputError(
            f"{quoted(url)!r} is not a URL: {quoted(str(error))}; give one such as s3://bucket/run-7"
        ) from error
    return urlunsplit(parts._replace(query="")), dict(parse_qsl(parts.query, keep_blank_values=True))


def _create(group: Any, group_options: Options | None) -> ProcessGroup:
    """Create the process group of the default group, or of a `new_group`."""
    if group_options is not None and not isinstance(group_options, Options):
        raise InputError(f"pg_options is a {type(group_options).__name__}; the backend takes zooid.comm.Options")
    is_default = not group.global_ranks_in_group
    rendezvous = _rendezvous_of(group, is_default)
    rank, size, timeout_s = group.group_rank, group.group_size, group.timeout.total_seconds()
    abort = rendezvous.abort if rendezvous else Abort()
    # torch's own file may still hold an earlier run's keys; the session's objects do not.
    group_store = _GroupStore(f"group-{group.group_id}", rendezvous or group.store, group.store)
    options = group_options or (rendezvous.options if rendezvous else Options(transport="tcp"))
    transport: Transport
    if options.transport == "tcp":
        transport, latency_s = connect(group_store, rank, size, options, timeout_s=timeout_s, abort=abort)
    elif rendezvous is None:
        raise InputError(
            f"the rendezvous of this group is a {type(_unwrapped(group.store)).__name__}, which holds no messages; use "
            "pg_options=zooid.comm.Options(transport='tcp'), or the URL of an object store as init_method"
        )
    else:
        prefix = f"{rendezvous.prefix}/group-{group.group_id}"
        transport = StoreTransport(rendezvous.objects, prefix, rank, timeout_s=timeout_s)
        latency_s = rendezvous.latency_s

    def on_left() -> None:
        if rendezvous is not None and (is_default or options.transport == "store"):
            prefixes = rendezvous.prefixes if is_default else (f"{rendezvous.prefix}/group-{group.group_id}",)
            leave(rendezvous.objects, prefixes, rank, size, timeout_s=timeout_s)
        if is_default and rendezvous is not None:
            _forget(rendezvous)

    return ProcessGroup(
        transport,
        rank,
        size,
        abort=abort,
        timeout_s=timeout_s,
        options=options,
        latency_s=latency_s,
        on_left=on_left,
        c10d_store=group_store,
    )


class _GroupStore(PrefixStore):
    """The keys of one group in a c10d store; keeps the Python half of that store alive."""

    def __init__(self, prefix: str, store: Any, *kept: object) -> None:
        super().__init__(prefix, store)
        self._kept = (store, *kept)


def _rendezvous_of(group: Any, is_default: bool) -> ObjectRendezvous | None:
    """Return the object store of the group's rendezvous; None where its c10d store is of another kind."""
    store = _unwrapped(group.store)
    if isinstance(store, ObjectRendezvous):
        return store
    if not isinstance(store, FileStore):
        return None
    path: str = store.path  # type: ignore[attr-defined]  # the stub lacks it
    if is_default:
        url = f"file://{path}{_FOLDER_SUFFIX}"
        options = _file_options.get(path, Options())
        _file_rendezvous[path] = _meet(url, group.group_rank, group.group_size, group.timeout.total_seconds(), options)
    if path not in _file_rendezvous:
        raise InputError(
            "the default group has another backend and its rendezvous is a file; use the backend zooid for the default "
            "group, or give this group an object store"
        )
    return _file_rendezvous[path]


def _forget(rendezvous: ObjectRendezvous) -> None:
    """Release the store of a destroyed default group, and remove the folder that was created for it."""
    if rendezvous in _rendezvous:
        _rendezvous.remove(rendezvous)
    for path in [path for path, kept in _file_rendezvous.items() if kept is rendezvous]:
        del _file_rendezvous[path]
        with contextlib.suppress(OSError):  # other ranks still need it; the last one removes it
            os.rmdir(path + _FOLDER_SUFFIX)


def _unwrapped(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
