"""Sweeps over a library's all-reduces: members are started where they would train, and time them together."""

import secrets
import time
from collections.abc import Sequence
from typing import get_args

from zooid.coordinator.measurements.link_probes import team_of
from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.offer_names import LOCAL, num_threads, only_offer
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.relay import OnEvent, Relay, ignore
from zooid.core.errors import InputError
from zooid.core.plans.all_reduce_samples import ELEMENT_BYTES, AllReduceSamples, Library
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import PhaseStarted
from zooid.core.runs.spec import SweepSpec
from zooid.core.units import format_bytes
from zooid.platforms import Platform
from zooid.store import check_create_only
from zooid.store.stored_records import read_record

SIZES = (2**10, 2**13, 2**16, 2**18, 2**20, 2**21, 2**22, 2**23, 2**24, 2**25)
AT_ONCE = (1, 4)
NUM_REPEATS = 5
_MIN_TIMEOUT_S = 90.0
_MIN_BYTES_PER_S = 1e6
"""A slower link counts as broken."""
_NUM_COPIES = 2
"""Maximum number of copies of its data that a member holds during an all-reduce."""


def probe_all_reduce(
    *,
    members: int = 2,
    store: str | None = None,
    on: str = LOCAL,
    site: str | None = None,
    library: Library = "gloo",
    sizes: Sequence[int] = SIZES,
    crowds: Sequence[int] | None = None,
    at_once: Sequence[int] = AT_ONCE,
    repeats: int = NUM_REPEATS,
    on_event: OnEvent = ignore,
    platform: Platform | None = None,
) -> AllReduceSamples:
    """Time a library's all-reduces by size, by number of members, and by the number in flight at once.

    `crowds` are the numbers of members that reduce together; by default 2, 4, 8, … and all of them. All members are at
    one site; other sites and offers need sweeps of their own.
    """
    offer = only_offer(on)
    doubling = {2**power for power in range(1, members.bit_length())} | {members}
    numbers = tuple(sorted(doubling) if crowds is None else crowds)
    _check(members, library, sizes, numbers, at_once, repeats, offer)
    team = team_of(members, [site or offer.site] * members)
    with opened_platform(platform, [offer]) as used_platform, scratch_folder(store, "sweeping") as folder:
        check_create_only(folder)  # the rendezvous of members relies on create-only puts
        on_event(PhaseStarted(at_s=time.time(), phase="sweep"))
        run = secrets.token_hex(4)
        specs = [
            SweepSpec(
                run=run,
                member=member.name,
                store=folder.url,
                num_threads=num_threads(offer),
                members=team,
                num_repeats=repeats,
                timeout_s=max(_MIN_TIMEOUT_S, 2 * max(sizes) * max(at_once) / _MIN_BYTES_PER_S),
                library=library,
                offer=offer.name,
                num_bytes=tuple(sizes),
                num_members=numbers,
                concurrency=tuple(at_once),
            )
            for member in team
        ]
        crew = Crew(used_platform, folder, checks_input=True)
        crew.run("profiler", specs, [offer] * len(specs), Relay(folder, on_event))
        return read_record(folder, keys.ALL_REDUCES, AllReduceSamples)


def _check(
    num_members: int,
    library: str,
    sizes: Sequence[int],
    crowds: Sequence[int],
    at_once: Sequence[int],
    repeats: int,
    offer: Offer,
) -> None:
    if num_members < 2:
        raise InputError(f"`members` is {num_members}; an all-reduce needs 2 or more")
    if library not in get_args(Library):
        raise InputError(f"the library is {library!r}; give {' or '.join(get_args(Library))}")
    _check_numbers("size(s) in bytes", sizes, ELEMENT_BYTES, "4 KiB, 1 MiB")
    if any(size % ELEMENT_BYTES for size in sizes):
        raise InputError(
            f"the sizes are {tuple(sizes)} bytes; give multiples of {ELEMENT_BYTES}, the size of a float32"
        )
    _check_numbers("number(s) of members", crowds, 2, "2, 4")
    if max(crowds) > num_members:
        raise InputError(f"`crowds` has {max(crowds)} members, but {num_members} are started; give as many members")
    _check_numbers("number(s) of all-reduces at once", at_once, 1, "1, 4")
    if repeats < 1:
        raise InputError(f"`repeats` is {repeats}; give 1 or more")
    needed_bytes = _NUM_COPIES * max(sizes) * max(at_once)
    if needed_bytes > offer.memory_bytes:
        raise InputError(
            f"{max(at_once)} all-reduce(s) at once of {format_bytes(max(sizes))} need {format_bytes(needed_bytes)}, "
            f"but {offer.name} has {format_bytes(offer.memory_bytes)}; give smaller sizes, or fewer at once"
        )


def _check_numbers(what: str, numbers: Sequence[int], minimum: int, example: str) -> None:
    if not numbers or min(numbers) < minimum or len(set(numbers)) < len(numbers):
        raise InputError(
            f"the {what} are {tuple(numbers)}; give different ones from {minimum} on, for example {example}"
        )
