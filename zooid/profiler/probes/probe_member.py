"""The work of a member that probes: all members run the same rounds in step, and the first one stores the links."""

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
from zooid.profiler.probes.peer_end import PeerEnd
from zooid.profiler.probes.probe_barrier import ProbeBarrier
from zooid.profiler.probes.probe_listener import Address, ProbeListener
from zooid.profiler.probes.probe_rounds import STORE, FlowIndex, ProbeRound, links_from, peer_rounds, store_rounds
from zooid.profiler.probes.steady_window import SteadyWindow
from zooid.profiler.probes.store_end import Direction, StoreEnd
from zooid.store import ObjectStore

Progress = Callable[[int, int], None]
"""Called with the number of finished measurements and the number of all measurements."""


def probe_links(spec: ProbeSpec, store: ObjectStore, progress: Progress, abort: Abort) -> None:
    """Measure links together with the other members of the spec; the first member stores the links."""
    with ExitStack() as stack:
        member = _ProbeMember(spec, store, abort)
        member.prepare(stack)
        links = member.merge(member.measure(progress))
        if spec.rank == 0:
            store.put(keys.LINKS, encode_record(links))


class _ProbeMember:
    """One of the members that probe together. All of them choose the same rounds and run them in step."""

    def __init__(self, spec: ProbeSpec, store: ObjectStore, abort: Abort) -> None:
        self._spec = spec
        self._store = store
        self._names = [member.name for member in spec.members]
        self._sites = [member.site for member in spec.members]
        self._window = SteadyWindow.of(spec.seconds)
        prefix = keys.probes_of(spec.run)
        self._barrier = ProbeBarrier(store, prefix, self._names, spec.rank, timeout_s=spec.timeout_s, abort=abort)
        self._store_end = StoreEnd(store, f"{prefix}/objects/{spec.member}", self._window)
        self._peer_end: PeerEnd | None = None
        self._rounds: list[ProbeRound] = []
        self._missing: tuple[MissingLink, ...] = ()

    def prepare(self, stack: ExitStack) -> None:
        """Wait for the other members, and choose the rounds; the listener is closed with the stack."""
        self._barrier.meet("the start")
        if "store" in self._spec.ends:
            self._store_end.prepare()
            self._rounds += store_rounds(self._sites, self._spec.num_streams)
        if "peers" in self._spec.ends and len(self._names) > 1:
            self._peer_end = self._find_peers(stack.enter_context(closing(ProbeListener())))

    def measure(self, progress: Progress) -> dict[FlowIndex, list[float]]:
        """Return this member's values of all rounds. The repeats of one round are some time apart."""
        samples: defaultdict[FlowIndex, list[float]] = defaultdict(list)
        total = self._spec.num_repeats * len(self._rounds)
        for done in range(total):
            number = done % len(self._rounds)
            progress(done, total)
            measured = self._take_part(self._rounds[number], done + 1, f"measurement {done + 1} of {total}")
            for flow_number, value in measured.items():
                samples[FlowIndex(number, flow_number)].append(value)
        progress(total, total)
        return samples

    def merge(self, samples: dict[FlowIndex, list[float]]) -> Links:
        """Return the links that follow from the values of all members."""
        own_values = [(*index, values) for index, values in samples.items()]
        member_values = self._barrier.meet("the end", own_values, list[tuple[int, int, list[float]]])
        merged = {FlowIndex(*index): values for entries in member_values for *index, values in entries}
        _check_complete(self._rounds, merged)
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

    def _find_peers(self, listener: ProbeListener) -> PeerEnd:
        """Find out which members can connect, and add the rounds between them."""
        addresses: list[Address] = self._barrier.meet("the exchange of addresses", listener.address, Address)
        timeout_s = self._spec.timeout_s
        end = PeerEnd(listener, self._names, self._spec.rank, addresses, self._window, timeout_s=timeout_s)
        reached_hosts = self._barrier.meet("the search for peers", end.look_for_peers(), list[tuple[str, str]])
        if any(len(hosts) != len(self._names) for hosts in reached_hosts):
            raise CommError(
                f"a member has looked for other peers than the {len(self._names)} members of this probe; start all "
                "members with the same spec and version of zooid"
            )
        end.learn(reached_hosts)
        rounds, missing = peer_rounds(self._sites, self._spec.num_streams, end.is_joined)
        self._rounds += rounds
        self._missing = tuple(
            MissingLink(
                from_site=self._sites[flow.source], to_site=self._sites[flow.target], reason=end.why_missing(flow)
            )
            for flow in missing
        )
        return end

    def _take_part(self, probe_round: ProbeRound, measurement: int, what: str) -> dict[int, float]:
        """Run this member's part of a round together with all members; return its values by flow number."""
        if probe_round.is_with_store:
            self._barrier.meet(what)
            return self._measure_store(probe_round)
        assert self._peer_end is not None, "there are no rounds between peers without it"
        with self._peer_end.opened(probe_round, measurement) as parts:
            self._barrier.meet(what)
            return self._peer_end.measure(probe_round.kind, parts)

    def _measure_store(self, probe_round: ProbeRound) -> dict[int, float]:
        measured = {}
        for number, flow in enumerate(probe_round.flows):
            if self._spec.rank in flow:
                direction: Direction = "up" if flow.target == STORE else "down"
                if probe_round.kind == "round_trip":
                    measured[number] = self._store_end.round_trip(direction)
                else:
                    measured[number] = self._store_end.bandwidth(direction, probe_round.num_streams)
        return measured


def _check_complete(rounds: Sequence[ProbeRound], samples: Mapping[FlowIndex, Sequence[float]]) -> None:
    """Raise CommError unless every flow of every round was measured, with values above 0."""
    for round_number, probe_round in enumerate(rounds):
        for flow_number in range(len(probe_round.flows)):
            values = samples.get(FlowIndex(round_number, flow_number), ())
            if not values or not all(0 < value < math.inf for value in values):
                raise CommError(
                    f"flow {flow_number} of round {round_number} has the values {quoted(str(values))}; all members "
                    "must measure the same rounds, with values above 0: start them with the same version of zooid"
                )
