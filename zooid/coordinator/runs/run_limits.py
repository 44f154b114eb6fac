"""The limits of a resumed run: those of the run so far, or new ones that begin to count now."""

import time

from msgspec import structs

from zooid.coordinator.runs.live_bill import spent_before
from zooid.core.errors import InputError
from zooid.core.plans.plan import Limits
from zooid.core.runs.checkpoint import Ledger
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.stop_request import STOPPED_BY_REQUEST
from zooid.core.units import format_duration, format_usd
from zooid.store import ObjectStore

_HOW = "give new limits for the remaining steps with --deadline or --budget (in Python, zooid.Limits)"


def limited(
    claim: RunClaim, number: int, given: Limits | None, before: RunClaim, ledger: Ledger, store: ObjectStore
) -> RunClaim:
    """Return the claim of this number with its limits. A given deadline or budget replaces both earlier limits.

    Raises InputError if earlier limits leave no room for another step.
    """
    now_s, spent_usd = time.time(), spent_before(store, number)
    if given is not None and (given.deadline_s is not None or given.budget_usd is not None):
        return structs.replace(
            claim,
            deadline_at_s=None if given.deadline_s is None else now_s + given.deadline_s,
            budget_usd=None if given.budget_usd is None else spent_usd + given.budget_usd,
        )
    if before.has_limits and ledger.by_request and ledger.stopped != STOPPED_BY_REQUEST:
        raise InputError(f"the run in {store.url} has stopped at a limit: {ledger.stopped}; {_HOW}")
    if before.deadline_at_s is not None and before.deadline_at_s <= now_s:
        late = format_duration(now_s - before.deadline_at_s)
        raise InputError(f"the deadline of the run in {store.url} passed {late} ago; {_HOW}")
    if before.budget_usd is not None and before.budget_usd <= spent_usd:
        budget = format_usd(before.budget_usd)
        raise InputError(f"the run in {store.url} has cost {format_usd(spent_usd)}, and its budget is {budget}; {_HOW}")
    return structs.replace(claim, deadline_at_s=before.deadline_at_s, budget_usd=before.budget_usd)
