"""The pace of a run in its folder, and the times that it gives each member."""

from zooid.core.errors import ObjectNotFound
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Plan
from zooid.core.plans.stage import StageTimes
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record


def find_pace(store: ObjectStore) -> RehearsalPace | None:
    """Return the pace of the run in this folder; None if computing takes the time that it takes."""
    try:
        return read_record(store, keys.PACE, RehearsalPace)
    except ObjectNotFound:
        return None


def paced_stages(pace: RehearsalPace, plan: Plan, offer: Offer) -> tuple[StageTimes, ...]:
    """Return how long a member on this offer computes in each stage of the plan, as if it had cores of its own."""
    # they import the planner, which no other run needs
    from zooid.coordinator.plans.markets import profile_for
    from zooid.predictor import stage_times

    profile = profile_for(offer, pace.profiles)
    return tuple(stage_times(profile, *span, plan.grain_size, is_direct=plan.is_direct) for span in plan.partition)
