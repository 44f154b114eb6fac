"""The rules by which a run is steered: given ones, those in its folder, or those that follow from its limits."""

from collections.abc import Sequence

from zooid.coordinator.policy.avoidance import Loss
from zooid.core.errors import ObjectNotFound
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.events import MemberExited
from zooid.core.runs.spec import RunClaim
from zooid.core.runs.steering import Steering
from zooid.store import ObjectStore, read_history
from zooid.store.stored_records import read_record


def steering_of(store: ObjectStore, claim: RunClaim, plan: Plan, fleets: Sequence[Plan]) -> Steering | None:
    """Return the rules of a run; None if its members cannot be replaced by others, or nothing else is known.

    Without rules in its folder, a run with limits may switch to other plans on the same offers.
    """
    if not plan.survives_losses:
        return None
    try:
        return read_record(store, keys.STEERING, Steering)
    except ObjectNotFound:
        pass
    has_profile = any(_exists(store, key) for key in (keys.PACE, keys.PROFILE))
    if not claim.has_limits or plan.predicted is None or not (fleets or has_profile):
        return None
    largest = max((plan, *fleets), key=lambda each: each.num_members)
    return Steering(offers=plan.offers, max_members=largest.num_members, asks_planner=has_profile)


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except ObjectNotFound:
        return False
    return True


def earlier_losses(store: ObjectStore, steering: Steering) -> list[Loss]:
    """Return the preemptions that earlier coordinators of the run have noted."""
    spot = {offer.name for offer in steering.offers if offer.market == "spot"}
    exits = [event for event in read_history(store) if isinstance(event, MemberExited)]
    return [Loss(event.offer, event.at_s) for event in exits if event.offer in spot]
