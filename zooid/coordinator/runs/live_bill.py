"""The bill of a run as it goes on, beside its limits.

It is shown, kept in the store, and carried on by the next coordinator. Members get the limits with the cost as a
function of time, so that they can stop by themselves.
"""

import time
from collections.abc import Collection

from zooid.coordinator.runs.limit_guard import LimitGuard
from zooid.coordinator.runs.relay import OnEvent
from zooid.coordinator.runs.run_meter import RunMeter
from zooid.core.errors import ObjectNotFound, RecordError
from zooid.core.plans.plan import Plan
from zooid.core.resources.prices import Prices
from zooid.core.runs import keys
from zooid.core.runs.allowance import PriceList
from zooid.core.runs.events import Event, Metered, StoreUsed
from zooid.core.runs.spec import RunClaim
from zooid.store import EventWriter, ObjectStore
from zooid.store.event_log import last_event
from zooid.store.request_counts import counts_of
from zooid.store.stored_records import read_record

_SHOW_S = 0.5
"""How often the bill is shown."""
_STORE_S = 10.0
"""How often the bill is kept in the store, for a coordinator that takes over: 8,640 puts a day, 4 cents on S3."""
_COUNT_BYTES_S = 60.0
"""How often the bytes in the store are counted: one listing."""
_PRICE_LOOK_S = 10.0
_LOCAL_PRICE_LOOK_S = 0.5
"""How often a run looks for changed prices in its folder: one get."""


class LiveBill:
    """Reads the meter of a run, and what the store tells about its costs."""

    def __init__(
        self, store: ObjectStore, writer: EventWriter, on_event: OnEvent, claim: RunClaim, roster: int
    ) -> None:
        """`claim` has the limits of the members that were or will be started under the claim number `roster`."""
        self.meter = RunMeter(lambda: counts_of(store))
        self._store = store
        self._writer = writer
        self.guard = LimitGuard(store, writer, self.meter, claim, roster)
        self._on_event = on_event
        self._price_look_s = _LOCAL_PRICE_LOOK_S if store.url.startswith("file://") else _PRICE_LOOK_S
        self._last_s: dict[str, float] = {}
        """When each of the regular things was last done."""

    def begin(self, plan: Plan, first_step: int = 0) -> None:
        """Bill at the plan's prices; PlanError if one is missing that the run needs."""
        from zooid.coordinator.plans.markets import prices_at  # it imports the planner, while members are starting

        self.meter.prices = prices_at(plan.offers, plan.store_at or None)
        self.meter.read(time.time())
        self.guard.begin(plan, first_step)

    def poll(self) -> None:
        """Show and keep the bill, look for changed prices and at the limits, if it is time for that."""
        if self._is_due("bytes", _COUNT_BYTES_S):
            self.meter.note_stored(self._store.stored_bytes(""), time.time())
        if self._is_due("prices", self._price_look_s):
            self._look_for_prices()
        if self._is_due("show", _SHOW_S):
            metered = self.read()
            self._on_event(metered)
            if self._is_due("store", _STORE_S):
                self._writer.write(metered)
                self.guard.allow()
            self.guard.judge(metered)

    def read(self) -> Metered:
        return self.meter.read(time.time())

    def close(self) -> None:
        """Keep the last bill in the store."""
        self._writer.write(self.read())

    def take(self, event: Event) -> None:
        self.meter.take(event)
        self.guard.take(event)

    def _look_for_prices(self) -> None:
        try:
            listed = read_record(self._store, keys.PRICES, PriceList)
        except (ObjectNotFound, RecordError):
            return
        changes = self.meter.change_prices(listed, time.time())
        for change in changes:
            self._writer.write(change)
        if changes:
            self.guard.allow()

    def _is_due(self, what: str, interval_s: float) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s.get(what, -interval_s) < interval_s:
            return False
        self._last_s[what] = now_s
        return True


def carry_over(meter: RunMeter, store: ObjectStore, before: int, prices: Prices, adopted: Collection[str] = ()) -> None:
    """Put onto a meter what the run has cost under the claims before this one, at these prices of the store.

    Members that are not adopted have cost money until they were last heard.
    """
    found = _last_bill(store, before)
    if found is None:
        return
    last, claim = found
    earlier = RunMeter(carried=last.settled)
    earlier.prices, earlier.trains_from_s = prices, last.trains_from_s
    for member in last.running:
        if member.member in adopted:
            meter.carry_on(member)
            continue
        earlier.carry_on(member)
        used = _last_usage(store, claim, member.member)
        earlier.end(member.member, last.at_s if used is None else max(last.at_s, used.at_s))
        if used is not None:
            earlier.take(used)
    meter.carried = earlier.read(last.at_s).terms
    if adopted:
        meter.trains_from_s = last.trains_from_s


def spent_before(store: ObjectStore, claim: int) -> float:
    """Return what the run had cost under earlier claims when that was last noted."""
    found = _last_bill(store, claim)
    return 0.0 if found is None else found[0].usd


def _last_bill(store: ObjectStore, before: int) -> tuple[Metered, int] | None:
    """Return the last bill under earlier claims, and the claim of the members on it."""
    bills = [
        (found, claim)
        for claim in range(before)
        for writer in store.list_folders(keys.events_under(claim))
        if writer.startswith(keys.COORDINATOR)
        and (found := last_event(store, keys.events_of(writer, claim), Metered)) is not None
    ]
    return max(bills, key=lambda bill: bill[0].at_s, default=None)


def _last_usage(store: ObjectStore, claim: int, member: str) -> StoreUsed | None:
    """Return the last report of a member under any roster of a claim."""
    rosters = [roster for name in store.list_folders(keys.EVENTS) if (roster := keys.roster_in(name)) is not None]
    for number, change in sorted(rosters, reverse=True):
        if number == claim:
            used = last_event(store, keys.events_of(member, number, change), StoreUsed)
            if used is not None:
                return used
    return None
