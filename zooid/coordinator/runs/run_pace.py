"""The pace of a run in its folder, and the times that it gives each member."""

from msgspec import structs

from zooid.core.errors import ObjectNotFound
from zooid.core.plans.pace import RehearsalPace
from zooid.core.plans.plan import Plan
from zooid.core.plans.stage import StageTimes, Tie
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.spec import RehearsalSpec, WorkerSpec
from zooid.store import ObjectStore
from zooid.store.stored_records import read_record


def find_pace(store: ObjectStore) -> RehearsalPace | None:
    """Return the pace of the run in this folder; None if computing takes the time that it takes."""
    try:
        return read_record(store, keys.PACE, RehearsalPace)
    except ObjectNotFound:
        return None


def paced_spec(spec: WorkerSpec, pace: RehearsalPace, plan: Plan, offer: Offer, replica: int) -> WorkerSpec:
    """Return the spec of a member that keeps this pace: it trains its job in the meantime, or sleeps if it has none."""
    stages = _stages(pace, plan, offer, replica)
    if pace.num_steps == 0:
        return structs.replace(spec, pace=stages, num_threads=1)
    ties = pace.ties if pace.rows else _ties(pace, plan)
    return RehearsalSpec(**{**structs.asdict(spec), "pace": stages, "ties": ties, "num_steps": pace.num_steps})


def _ties(pace: RehearsalPace, plan: Plan) -> tuple[Tie, ...]:
    from zooid.predictor import ties_between

    return ties_between(next(iter(pace.profiles.values())), plan.partition)


def _stages(pace: RehearsalPace, plan: Plan, offer: Offer, replica: int) -> tuple[StageTimes, ...]:
    """Return how long a member on this offer computes in each stage of the plan, as if it had cores of its own."""
    if pace.rows:
        return pace.rows[min(replica, len(pace.rows) - 1)]
    # they import the planner, which no other run needs
    from zooid.coordinator.plans.markets import profile_for
    from zooid.predictor import stage_times

    profile = profile_for(offer, pace.profiles)
    return tuple(stage_times(profile, *span, plan.grain_size, is_direct=plan.is_direct) for span in plan.partition)
