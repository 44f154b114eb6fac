"""Link probes: members are started where they would train, and measure the links between them and to the store."""

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from zooid.coordinator.measurements.scratch_folder import scratch_folder
from zooid.coordinator.plans.machine_pools import machines_of
from zooid.coordinator.plans.offer_names import LOCAL, largest_offers, num_threads
from zooid.coordinator.plans.own_offers import own_offer
from zooid.coordinator.runs.crew import Crew
from zooid.coordinator.runs.platform_choice import opened_platform
from zooid.coordinator.runs.relay import OnEvent, Relay, ignore
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.environment import rough_repeats
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits
from zooid.core.resources.link import Link, Links
from zooid.core.resources.machine_sites import inside_of, outer_site
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
    members: int | None = None,
    store: str | None = None,
    on: str | Sequence[str] = LOCAL,
    sites: Sequence[str] | None = None,
    ends: Sequence[LinkEnd] = ENDS,
    streams: Sequence[int] = NUM_STREAMS,
    seconds: float = 1.0,
    on_event: OnEvent = ignore,
    platform: Platform | None = None,
) -> Links:
    """Measure bandwidth and round trip to the store and between members, for growing numbers of members at once.

    `sites` gives the site of each member, if they are not all at one; links are reported between sites. Without
    `members` and `sites`, there are as many members as are needed to measure all links that members on these offers
    may have.
    """
    offers = largest_offers([on] if isinstance(on, str) else on)
    if sites is None and members is None:
        team = probe_team(offers)
    else:
        num_members = members or len(sites or ())
        if len(offers) > 1:
            raise InputError(f"members or sites need one offer; {len(offers)} are given; give one, or neither")
        team = [
            _Probe(offers[0], member.site) for member in team_of(num_members, sites or [offers[0].site] * num_members)
        ]
    _check(len(team), ends, streams, seconds)
    return _measure_links(team, ends, streams, seconds, store, on_event, platform)


class _Probe(NamedTuple):
    """A member that probes: its offer, and its site or machine."""

    offer: Offer
    site: str
    pool: Offer | None = None
    """The offer whose machine it is on, where links inside machines are told apart."""


def probe_team(offers: Sequence[Offer]) -> list[_Probe]:
    """Return members that together measure all links which members on these offers may have.

    A link inside a machine needs two members on it, and a link between the machines of an offer one on each of two.
    Where a cluster decides on the machines, two members measure the link that it gives them.
    """
    team = []
    for offer in offers:
        if offer.platform != "ssh":
            team += [_Probe(offer, offer.site)] * (1 if offer.max_members == 1 else 2)
            continue
        first, *others = (_Probe(own_offer(name), f"{offer.site}/{name}", offer) for name in machines_of(offer.name))
        team += [first] * min(2, offer.machine_members) + others[:1]
    return team


def _measure_links(
    team: Sequence[_Probe],
    ends: Sequence[LinkEnd],
    streams: Sequence[int],
    seconds: float,
    store: str | None,
    on_event: OnEvent,
    platform: Platform | None,
    meter: RunMeter | None = None,
) -> Links:
    """Start these members, and return the links that they measure. The meter of a run bills them."""
    members = team_of(len(team), [probing.site for probing in team])
    offers = [probing.offer for probing in team]
    # These members need no torch, and a process that imports it before it forks them would start later.
    with opened_platform(platform, offers, forks=False) as used_platform, scratch_folder(store, "probing") as folder:
        on_event(PhaseStarted(at_s=time.time(), phase="probe"))
        run = secrets.token_hex(4)
        specs = [
            ProbeSpec(
                run=run,
                member=member.name,
                store=folder.url,
                num_threads=num_threads(probing.offer),
                members=members,
                ends=tuple(ends),
                num_streams=tuple(streams),
                num_repeats=rough_repeats(_NUM_REPEATS),
                seconds=seconds,
                timeout_s=max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * seconds),
            )
            for probing, member in zip(team, members, strict=True)
        ]
        crew = Crew(used_platform, folder, checks_input=False, meter=meter)
        crew.run("profiler", specs, offers, Relay(folder, on_event))
        return _of_machines(read_record(folder, keys.LINKS, Links), team)


def _of_machines(links: Links, team: Sequence[_Probe]) -> Links:
    """Return the links with those of single machines named as they hold for all machines of their offers.

    Of several links between the same sites, the slowest counts.
    """
    insides = {probing.site: inside_of(probing.pool) for probing in team if probing.pool is not None}
    slowest: dict[tuple[str, str, int, int], Link] = {}
    for link in links.links:
        names = link.from_site, link.to_site
        is_inside = names[0] == names[1] and names[0] in insides
        from_site, to_site = (insides[name] if is_inside else outer_site(name) for name in names)
        named = structs.replace(link, from_site=from_site, to_site=to_site)
        key = (from_site, to_site, link.num_members, link.num_streams)
        if key not in slowest or named.bandwidth_bytes_per_s < slowest[key].bandwidth_bytes_per_s:
            slowest[key] = named
    return structs.replace(links, links=tuple(slowest.values()))


def peer_links(
    limits: Limits,
    offers: Sequence[Offer],
    known: Links | None,
    on_event: OnEvent,
    platform: Platform | None,
    meter: RunMeter | None = None,
    store: str | None = None,
) -> tuple[Link, ...]:
    """Return the known links between members; if none are known, measure those that connected members would have.

    They are measured if members must be connected, and on other machines if they may be. Members on other machines
    meet in the store of this URL, and those of this machine in a folder here.
    """
    if known is not None:
        return known.links
    are_elsewhere = [offer for offer in offers if offer.is_elsewhere]
    if not limits.is_direct and (limits.transport == "store" or not are_elsewhere):
        return ()
    team = probe_team(are_elsewhere or offers[:1])
    if len(team) == 1:
        return ()
    return _measure_links(
        team, ("peers",), (1,), _SHORT_S, store if are_elsewhere else None, on_event, platform, meter
    ).links


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
