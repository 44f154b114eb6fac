"""The work of a member that probes: rounds of measurements, all members in step, and links in the store at the end."""

import datetime
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing

from zooid.core.abort import Abort
from zooid.core.errors import CommError
from zooid.core.records import encode_record
from zooid.core.resources.link import Links, MissingLink
from zooid.core.runs import keys
from zooid.core.runs.spec import ProbeSpec
from zooid.core.text import quoted
from zooid.core.version import VERSION
from zooid.profiler.probes.door import Address, Door
from zooid.profiler.probes.peer_end import PeerEnd
from zooid.profiler.probes.probe_rounds import STORE, Place, Round, links_from, peer_rounds, store_rounds
from zooid.profiler.probes.steady_window import Window
from zooid.profiler.probes.store_end import StoreEnd, Way
from zooid.profiler.probes.store_meeting import Gathering
from zooid.store import ObjectStore

Progress = Callable[[int, int], None]
"""Called with the number of measurements that are done, and that of all."""


def probe_links(spec: ProbeSpec, store: ObjectStore, progress: Progress, abort: Abort) -> None:
    """Measure together with the other members of the spec; the first of them writes the links."""
    with ExitStack() as stack:
        member = _Member(spec, store, abort)
        member.prepare(stack)
        samples = member.measure(progress)
        links = member.merge(samples)
        if spec.rank == 0:
            store.put(keys.LINKS, encode_record(links))


class _Member:
    """One of those that probe together. All of them decide on the same rounds, and go through them in step."""

    def __init__(self, spec: ProbeSpec, store: ObjectStore, abort: Abort) -> None:
        self._spec = spec
        self._store = store
        self._names = [member.name for member in spec.members]
        self._sites = [member.site for member in spec.members]
        self._window = Window.of(spec.seconds)
        prefix = keys.probes_of(spec.run)
        self._gathering = Gathering(store, prefix, self._names, spec.rank, timeout_s=spec.timeout_s, abort=abort)
        self._store_end = StoreEnd(store, f"{prefix}/objects/{spec.member}", self._window)
        self._peer_end: PeerEnd | None = None
        self._rounds: list[Round] = []
        self._missing: tuple[MissingLink, ...] = ()

    def prepare(self, stack: ExitStack) -> None:
        """Meet the others, and decide on the rounds; what is opened for them is closed with the stack."""
        self._gathering.meet("the first meeting")
        if "store" in self._spec.ends:
            self._store_end.prepare()
            self._rounds += store_rounds(self._sites, self._spec.num_streams)
        if "peers" in self._spec.ends and len(self._names) > 1:
            self._peer_end = self._meet_peers(stack.enter_context(closing(Door())))

    def measure(self, progress: Progress) -> dict[Place, list[float]]:
        """All rounds, again and again, so that the repeats of one are some time apart; what this member measured."""
        samples: defaultdict[Place, list[float]] = defaultdict(list)
        total = self._spec.num_repeats * len(self._rounds)
        for done in range(total):
            number = done % len(self._rounds)
            progress(done, total)
            measured = self._take_part(self._rounds[number], done + 1, f"measurement {done + 1} of {total}")
            for flow_number, value in measured.items():
                samples[Place(number, flow_number)].append(value)
        progress(total, total)
        return samples

    def merge(self, samples: dict[Place, list[float]]) -> Links:
        """The links that follow from what all members have measured."""
        own = [(*place, values) for place, values in samples.items()]
        said = self._gathering.meet("the end", own, list[tuple[int, int, list[float]]])
        merged = {Place(*place): values for of_member in said for *place, values in of_member}
        _refuse_gaps(self._rounds, merged)
        today = datetime.date.today().isoformat()
        links = links_from(
            self._rounds,
            merged,
            self._sites,
            store_source=f"probe of {self._store.url.partition('://')[0]}",
            peer_source="probe of tcp",
            date=today,
        )
        return Links(zooid_version=VERSION, date=today, links=links, missing=self._missing)

    def _meet_peers(self, door: Door) -> PeerEnd:
        """Find out who reaches whom."""
        addresses: list[Address] = self._gathering.meet("the exchange of addresses", door.address, Address)
        timeout_s = self._spec.timeout_s
        end = PeerEnd(door, self._names, self._spec.rank, addresses, self._window, timeout_s=timeout_s)
        found = self._gathering.meet("the search for peers", end.look_for_peers(), list[tuple[str, str]])
        if any(len(of_member) != len(self._names) for of_member in found):
            raise CommError(f"members have looked for other peers than the {len(self._names)} that measure together")
        end.learn(found)
        rounds, missing = peer_rounds(self._sites, self._spec.num_streams, end.is_joined)
        self._rounds += rounds
        self._missing = tuple(
            MissingLink(
                from_site=self._sites[flow.source], to_site=self._sites[flow.target], reason=end.why_missing(flow)
            )
            for flow in missing
        )
        return end

    def _take_part(self, each: Round, purpose: int, what: str) -> dict[int, float]:
        """This member's part in a round, which all begin together; what it measured, by number of the flow."""
        if each.is_with_store:
            self._gathering.meet(what)
            return self._measure_store(each)
        assert self._peer_end is not None, "there are no rounds between peers without it"
        with self._peer_end.opened(each, purpose) as parts:
            self._gathering.meet(what)
            return self._peer_end.measure(each.kind, parts)

    def _measure_store(self, each: Round) -> dict[int, float]:
        measured = {}
        for number, flow in enumerate(each.flows):
            if self._spec.rank in flow:
                way: Way = "up" if flow.target == STORE else "down"
                measured[number] = (
                    self._store_end.round_trip(way)
                    if each.kind == "round_trip"
                    else self._store_end.bandwidth(way, each.num_streams)
                )
        return measured


def _refuse_gaps(rounds: Sequence[Round], samples: Mapping[Place, Sequence[float]]) -> None:
    """Every flow of every round must have been measured, by numbers above 0."""
    for round_number, each in enumerate(rounds):
        for flow_number in range(len(each.flows)):
            values = samples.get(Place(round_number, flow_number), ())
            if not values or not all(0 < value < math.inf for value in values):
                raise CommError(
                    f"flow {flow_number} of measurement {round_number} has the values {quoted(str(values))}; members "
                    "must measure the same rounds, and numbers above 0: start them with the same version of zooid"
                )
