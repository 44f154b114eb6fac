"""Link probes: members are started where they would train, and measure the links between them and to the store."""

import secrets
import time
from collections.abc import Sequence

from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.offer_names import LOCAL, num_threads, resolve_offer
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.platform_choice import any_platform
from zooid.coordinator.runs.relay import OnEvent, Relay, ignore
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.environment import rough_repeats
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits
from zooid.core.resources.link import Link, Links
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.events import PhaseStarted
from zooid.core.runs.spec import LinkEnd, ProbeMember, ProbeSpec
from zooid.platforms import Platform
from zooid.store.stored_records import read_record

ENDS: tuple[LinkEnd, ...] = ("store", "peers")
NUM_STREAMS = (1, 4, 16)
_NUM_REPEATS = 3
_SHORT_S = 0.3
"""Duration of a measurement that suffices for a plan of members near one another."""
_MIN_S, _MAX_S = 0.05, 60.0
_MIN_TIMEOUT_S = 90.0
_TIMEOUT_FACTOR = 5.0
"""A member stops waiting for another one after this many measurements. The coordinator notices a lost member long
before; the timeout is for members whose coordinator is lost."""


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
    platform: Platform | None = None,
) -> Links:
    """Measure bandwidth and round trip to the store and between members, for growing numbers of members at once.

    `sites` gives the site of each member, if they are not all at one; links are reported between sites.
    """
    offer = resolve_offer(on)
    team = team_of(members, sites or [offer.site] * members)
    _check(members, ends, streams, seconds)
    return _measure_links(team, offer, ends, streams, seconds, store, on_event, platform)


def _measure_links(
    team: tuple[ProbeMember, ...],
    offer: Offer,
    ends: Sequence[LinkEnd],
    streams: Sequence[int],
    seconds: float,
    store: str | None,
    on_event: OnEvent,
    platform: Platform | None,
    meter: RunMeter | None = None,
) -> Links:
    """Start these members, and return the links that they measure. The meter of a run bills them."""
    with scratch_folder(store, "probing") as folder:
        on_event(PhaseStarted(at_s=time.time(), phase="probe"))
        run = secrets.token_hex(4)
        specs = [
            ProbeSpec(
                run=run,
                member=member.name,
                store=folder.url,
                num_threads=num_threads(offer),
                members=team,
                ends=tuple(ends),
                num_streams=tuple(streams),
                num_repeats=rough_repeats(_NUM_REPEATS),
                seconds=seconds,
                timeout_s=max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * seconds),
            )
            for member in team
        ]
        # These members need no torch, and a process that imports it before it forks them would start later.
        crew = Crew(platform or any_platform(forks=False), folder, checks_input=False, meter=meter)
        crew.run("profiler", specs, [offer] * len(specs), Relay(folder, on_event))
        return read_record(folder, keys.LINKS, Links)


def peer_links(
    limits: Limits,
    on: str,
    known: Links | None,
    on_event: OnEvent,
    platform: Platform | None,
    meter: RunMeter | None = None,
    store: str | None = None,
) -> tuple[Link, ...]:
    """Return the known links between members; if none are known, measure those that directly connected members need.

    Members on other machines meet in the store of this URL, and those of this machine in a folder here.
    """
    if known is not None:
        return known.links
    if not limits.is_direct:
        return ()
    offer = resolve_offer(on)
    team = team_of(2, [offer.site] * 2)
    meeting = store if offer.is_elsewhere else None
    return _measure_links(team, offer, ("peers",), (1,), _SHORT_S, meeting, on_event, platform, meter).links


def team_of(num_members: int, sites: Sequence[str]) -> tuple[ProbeMember, ...]:
    """Return the members that measure together, in rank order."""
    if len(sites) != num_members:
        raise InputError(f"{len(sites)} site(s) are given for {num_members} member(s); give one for each, in order")
    return tuple(ProbeMember(name=f"m{rank}", site=site) for rank, site in enumerate(sites))


def _check(num_members: int, ends: Sequence[str], streams: Sequence[int], seconds: float) -> None:
    if num_members < 1:
        raise InputError(f"`members` is {num_members}; give 1 or more")
    if not ends or not set(ends) <= set(ENDS):
        raise InputError(f"`ends` is {', '.join(ends) or 'empty'}; give {' or '.join(ENDS)}, or both")
    if num_members == 1 and "store" not in ends:
        raise InputError("links between members are asked for, but there is only one member; give 2 or more")
    if not streams or min(streams) < 1 or len(set(streams)) < len(streams):
        raise InputError(f"`streams` is {tuple(streams)}; give different numbers from 1 on, for example 1, 4, 16")
    if not _MIN_S <= seconds <= _MAX_S:
        raise InputError(f"`seconds` is {seconds:g}; give a number from {_MIN_S:g} to {_MAX_S:g}")
