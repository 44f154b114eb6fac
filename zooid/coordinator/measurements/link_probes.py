"""Measuring links: members are started where they would train, and probe together."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.offer_names import LOCAL, num_threads, resolve_offer
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.relay import OnEvent, Relay, ignore
from zooid.core.environment import rough_repeats
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits
from zooid.core.records import decode_record
from zooid.core.resources.link import Link, Links
from zooid.core.runs import keys
from zooid.core.runs.events import PhaseStarted
from zooid.core.runs.spec import LinkEnd, ProbeMember, ProbeSpec
from zooid.platforms import Platform
from zooid.platforms.local import LocalPlatform

ENDS: tuple[LinkEnd, ...] = ("store", "peers")
NUM_STREAMS = (1, 4, 16)
_NUM_REPEATS = 3
_SHORT_S = 0.3
"""Enough for a plan of members that are near one another."""
_SECONDS = (0.05, 60.0)
_LEAST_TIMEOUT_S = 90.0
_TIMEOUT_FACTOR = 5.0
"""A member that waits so many times a measurement for another one gives up. The coordinator notices a lost member long
before; this is for members that are left alone."""


def probe(
    *,
    members: int = 2,
    store: str | None = None,
    on: str = LOCAL,
    sites: Sequence[str] | None = None,
    ends: Sequence[LinkEnd] = ENDS,
    streams: Sequence[int] = NUM_STREAMS,
    seconds: float = 1.0,
    on_event: OnEvent = ignore,
    platform: Platform[Any] | None = None,
) -> Links:
    """Bandwidth and round trip to the store and between members, for growing numbers of members at once.

    `sites` says where each member is, if they are not all in one place: links are reported between sites.
    """
    offer = resolve_offer(on)
    team = team_of(members, sites or [offer.site] * members)
    _check(members, ends, streams, seconds)
    with scratch_folder(store, "probing") as objects:
        on_event(PhaseStarted(at_s=time.time(), phase="probe"))
        run = secrets.token_hex(4)
        specs = [
            ProbeSpec(
                run=run,
                member=member.name,
                store=objects.url,
                num_threads=num_threads(offer),
                members=team,
                ends=tuple(ends),
                num_streams=tuple(streams),
                num_repeats=rough_repeats(_NUM_REPEATS),
                seconds=seconds,
                timeout_s=max(_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR * seconds),
            )
            for member in team
        ]
        relay = Relay(objects, on_event)
        # These members need no torch, so that forking them from a process that first imports it would take longer.
        with Crew(platform or LocalPlatform(forks=False), objects, checks_input=False) as crew:
            crew.start("profiler", specs, [offer] * len(specs))
            crew.wait(relay.poll)
        relay.flush()
        return decode_record(bytes(objects.get(keys.LINKS)), Links, f"{objects.url}/{keys.LINKS}")


def peer_links(
    limits: Limits, on: str, known: Links | None, on_event: OnEvent, platform: Platform[Any] | None
) -> tuple[Link, ...]:
    """Links between members: those that are known, or else measured, where the limits say that these are connected."""
    if known is not None:
        return known.links
    if not limits.is_direct:
        return ()
    found = probe(on=on, ends=("peers",), streams=(1,), seconds=_SHORT_S, on_event=on_event, platform=platform)
    return found.links


def team_of(num_members: int, sites: Sequence[str]) -> tuple[ProbeMember, ...]:
    """Members that measure together, by their ranks."""
    if len(sites) != num_members:
        raise InputError(f"{len(sites)} site(s) are given for {num_members} member(s); give one for each, in order")
    return tuple(ProbeMember(name=f"m{rank}", site=site) for rank, site in enumerate(sites))


def _check(num_members: int, ends: Sequence[str], streams: Sequence[int], seconds: float) -> None:
    if num_members < 1:
        raise InputError(f"{num_members} members are to probe; give 1 or more")
    if not ends or not set(ends) <= set(ENDS):
        raise InputError(f"links to {', '.join(ends) or 'nothing'} are asked for; give {' or '.join(ENDS)}, or both")
    if num_members == 1 and "store" not in ends:
        raise InputError("links between members are asked for, but there is one member only; give 2 or more")
    if not streams or min(streams) < 1 or len(set(streams)) < len(streams):
        raise InputError(f"`streams` is {tuple(streams)}; give different numbers from 1 on, for example 1, 4, 16")
    least, most = _SECONDS
    if not least <= seconds <= most:
        raise InputError(f"a measurement of {seconds:g} s is asked for; give {least:g} to {most:g}")
