"""The meter of a run: its cost at any moment, with every term of the bill.

Members cost from their start to their end, whatever they do. The use of the store is what they and the coordinator have
counted themselves. What earlier coordinators of the run have spent is carried over.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import structs

from zooid.core.plans.plan import CostTerm
from zooid.core.resources.link import STORE_SITE
from zooid.core.resources.offer import Offer
from zooid.core.resources.prices import DATA_SITE, FREE, Prices
from zooid.core.resources.tariff import Tariff
from zooid.core.runs.allowance import Allowance, PriceList
from zooid.core.runs.events import Event, Metered, PriceChanged, RunningMember, StepCommitted, StoreUsed
from zooid.core.units import SECONDS_PER_HOUR
from zooid.store.request_counts import RequestCounts

_RATE_WINDOW_S = 60.0
"""Time over which the growth of requests, storage and traffic is measured."""
_MIN_RATE_WINDOW_S = 3.0
_BY_USE = ("requests", "storage", "egress", "data")


@dataclass
class _Entry:
    """One member on the bill."""

    bill: RunningMember
    ended_at_s: float | None = None
    """Unix time until which it is billed; None while it runs."""
    is_queued: bool = False
    """True while the member may wait in a queue of its platform, which costs nothing."""
    lag_s: float = 0.0
    """Seconds between its launch and its start, for which nobody is billed."""
    used: StoreUsed | None = None
    """Its last report of what it has used."""
    attended: StoreUsed | None = None
    """What the program has used that attended it."""

    def until_s(self, at_s: float) -> float:
        return at_s if self.ended_at_s is None else self.ended_at_s

    def change_price(self, usd_per_hour: float, at_s: float) -> None:
        from_s = self.bill.tariff.started_at_s if self.is_queued else at_s
        self.bill = structs.replace(self.bill, tariff=self.bill.tariff.at_price(usd_per_hour, from_s))


class RunMeter:
    """The bill of a run while it goes on. All times are Unix times."""

    def __init__(
        self, own_counts: Callable[[], RequestCounts] = RequestCounts, carried: Iterable[CostTerm] = ()
    ) -> None:
        """`own_counts` returns the coordinator's own requests, and `carried` is the cost of earlier claims."""
        self.prices: Prices = FREE
        self.trains_from_s: float | None = None
        """When the first step began, until which training members start up; None before that is known."""
        self.carried = tuple(carried)
        self._own_counts = own_counts
        self._members: list[_Entry] = []
        self._listed: dict[str, float] = {}
        """Prices that have changed since the plan was made, by offer."""
        self._price_list: PriceList | None = None
        self._stored: tuple[float, int] | None = None
        """When the bytes in the store were last counted, and their number."""
        self._stored_byte_s = 0.0
        self._by_use: deque[tuple[float, float]] = deque()
        """Moments, and the cost by use until then."""

    @property
    def running(self) -> tuple[RunningMember, ...]:
        """Members that are billed now."""
        return tuple(entry.bill for entry in self._running if not entry.is_queued)

    @property
    def _running(self) -> list[_Entry]:
        return [entry for entry in self._members if entry.ended_at_s is None]

    def start(self, member: str, offer: Offer, at_s: float, *, prepares: bool, is_queued: bool = False) -> None:
        """Bill a member from this time on. One that `is_queued` costs nothing before it has begun."""
        tariff = Tariff.of(offer, at_s).at_price(self.usd_per_hour(offer), at_s)
        self.carry_on(
            RunningMember(
                member=member,
                offer=offer.name,
                site=offer.site,
                tariff=tariff,
                usd_per_start=offer.usd_per_start,
                prepares=prepares,
            )
        )
        self._members[-1].is_queued = is_queued

    def begin(self, member: str, at_s: float) -> None:
        """Bill a member that was queued from this time on."""
        for entry in self._running:
            if entry.bill.member == member and entry.is_queued:
                entry.is_queued = False
                entry.bill = structs.replace(entry.bill, tariff=structs.replace(entry.bill.tariff, started_at_s=at_s))

    def usd_per_hour(self, offer: Offer) -> float:
        """Return the present price of a member on this offer."""
        listed = None if self._price_list is None else self._price_list.price_of(offer.name)
        return offer.usd_per_hour if listed is None else listed

    def carry_on(self, member: RunningMember) -> None:
        """Bill a member on, as an earlier coordinator has begun to."""
        self._members.append(_Entry(member))

    def end(self, member: str, at_s: float, ran_s: float | None = None, attended: StoreUsed | None = None) -> None:
        """Stop billing a member, unless it has already ended.

        `ran_s` is the time for which it ran, and `attended` is what the program has used that attended it, if they are
        known. A member that never ran costs nothing, not even its start.

        Until then it is billed from its launch on, because nobody knows yet how long the platform takes to start it.
        """
        for entry in self._running:
            if entry.bill.member == member:
                if ran_s == 0.0 and entry.used is None:
                    self._members.remove(entry)
                    return
                entry.is_queued = False
                since_launch_s = max(0.0, at_s - entry.bill.tariff.started_at_s)
                billed_s = ran_s or since_launch_s
                entry.ended_at_s = entry.bill.tariff.started_at_s + billed_s
                entry.attended = attended
                entry.lag_s = max(0.0, since_launch_s - billed_s)

    def take(self, event: Event) -> None:
        """Note what an event tells about costs."""
        if isinstance(event, StoreUsed):
            for entry in reversed(self._members):
                if entry.bill.member == event.member:
                    entry.used = event
                    return
        elif isinstance(event, StepCommitted) and self.trains_from_s is None:
            self.trains_from_s = event.at_s - event.step_s

    def note_stored(self, num_bytes: int, at_s: float) -> None:
        """Note how many bytes lie in the store. Until the next count, they stay."""
        self._settle_storage(at_s)
        self._stored = (at_s, num_bytes)

    def change_prices(self, listed: PriceList, at_s: float) -> list[PriceChanged]:
        """Bill at other prices from this time on, and return the changes."""
        self._price_list = listed
        changes = []
        for entry in self._running:
            offer, before = entry.bill.offer, entry.bill.tariff.usd_per_hour
            price = listed.price_of(offer)
            if price is None or price == before:
                continue
            if price != self._listed.get(offer):
                self._listed[offer] = price
                changes.append(PriceChanged(at_s=at_s, offer=offer, usd_per_hour=price, before_usd_per_hour=before))
            entry.change_price(price, at_s)
        return changes

    def read(self, at_s: float) -> Metered:
        """Return the cost at this time. Its terms sum to the total exactly."""
        self._settle_storage(at_s)
        ended = [entry for entry in self._members if entry.ended_at_s is not None]
        terms, settled = self._terms(self._members, at_s), self._terms(ended, at_s)
        by_use = math.fsum(term.usd for term in terms if term.kind in _BY_USE)
        return Metered(
            at_s=at_s,
            usd=math.fsum(term.usd for term in terms),
            terms=terms,
            usd_per_s=_usd_per_s(self.running) + self._rate_by_use(at_s, by_use),
            running=self.running,
            settled=settled,
            trains_from_s=self.trains_from_s,
        )

    def allowance(self, metered: Metered, deadline_at_s: float | None, budget_usd: float | None) -> Allowance:
        """Return the run's limits with its cost as a function of time, from a reading of this meter."""
        tariffs = tuple(member.tariff for member in metered.running)
        members_usd = math.fsum(tariff.usd_at(metered.at_s) for tariff in tariffs)
        return Allowance(
            at_s=metered.at_s,
            deadline_at_s=deadline_at_s,
            budget_usd=budget_usd,
            tariffs=tariffs,
            other_usd=max(0.0, metered.usd - members_usd),
            other_usd_per_s=max(0.0, metered.usd_per_s - _usd_per_s(metered.running)),
        )

    def _terms(self, entries: list[_Entry], at_s: float) -> tuple[CostTerm, ...]:
        from zooid.predictor.costs.bill import METERED_KINDS, PREPARATION, usage_usd
        from zooid.predictor.costs.usage import Move, RunUsage

        amounts: dict[str, list[float]] = {kind: [] for kind in METERED_KINDS}
        for term in self.carried:
            amounts.setdefault(term.kind, []).append(term.usd)
        for entry in (entry for entry in entries if not entry.is_queued):
            start_usd = entry.bill.usd_per_start
            time_usd = entry.bill.tariff.usd_at(entry.until_s(at_s)) - start_usd
            amounts["starts"].append(start_usd)
            if entry.bill.prepares:
                amounts[PREPARATION].append(time_usd)
                continue
            startup_usd = time_usd * self._startup_fraction(entry, at_s)
            amounts["start-up"].append(startup_usd)
            amounts["compute"].append(time_usd - startup_usd)
        used = [
            (entry.bill.site, each) for entry in entries for each in (entry.used, entry.attended) if each is not None
        ]
        own = self._own_counts()
        usage = RunUsage(
            num_puts=own.num_puts + sum(each.num_puts for _, each in used),
            num_gets=own.num_gets + sum(each.num_gets for _, each in used),
            num_lists=own.num_lists + sum(each.num_lists for _, each in used),
            stored_byte_s=self._stored_byte_s,
            moves=(
                *(Move(site, STORE_SITE, each.sent_bytes) for site, each in used),
                *(Move(STORE_SITE, site, each.received_bytes) for site, each in used),
            ),
            data_gets=sum(each.data_gets for _, each in used),
            data_moves=tuple(Move(DATA_SITE, site, each.data_bytes) for site, each in used),
        )
        for kind, usd in usage_usd(usage, self.prices).items():
            amounts[kind].append(usd)
        return tuple(CostTerm(kind=kind, usd=math.fsum(usd)) for kind, usd in amounts.items())

    def _startup_fraction(self, entry: _Entry, at_s: float) -> float:
        """Fraction of a member's time before the first step."""
        launched_s = entry.bill.tariff.started_at_s
        running_s = entry.until_s(at_s) - launched_s
        if self.trains_from_s is None or running_s <= 0:
            return 1.0
        return min(1.0, max(0.0, self.trains_from_s - launched_s - entry.lag_s) / running_s)

    def _settle_storage(self, at_s: float) -> None:
        if self._stored is not None:
            since_s, num_bytes = self._stored
            self._stored_byte_s += num_bytes * max(0.0, at_s - since_s)
            self._stored = (max(at_s, since_s), num_bytes)

    def _rate_by_use(self, at_s: float, usd: float) -> float:
        """How fast the cost of requests, storage, traffic and data has grown lately, in dollars per second."""
        self._by_use.append((at_s, usd))
        while len(self._by_use) > 2 and self._by_use[0][0] < at_s - _RATE_WINDOW_S:
            self._by_use.popleft()
        since_s, before_usd = self._by_use[0]
        return max(0.0, usd - before_usd) / (at_s - since_s) if at_s - since_s >= _MIN_RATE_WINDOW_S else 0.0


def _usd_per_s(members: Iterable[RunningMember]) -> float:
    return math.fsum(member.tariff.usd_per_hour / SECONDS_PER_HOUR for member in members)
