"""Plans of one stage whose replicas are on different offers, with four grains a step."""

from msgspec import structs

from tests.unit.test_records import a_plan, a_stage, an_offer
from zooid.core.plans.plan import Plan


def a_fleet(*offers: str, step_s: float = 1.0, usd_per_hour: float = 36.0, shares: tuple[int, ...] = ()) -> Plan:
    """A replica on each of these offers. An offer whose name begins with `spot` can be preempted."""
    made = tuple(
        structs.replace(
            an_offer(),
            name=name,
            usd_per_hour=usd_per_hour,
            market="spot" if name.startswith("spot") else "on_demand",
            startup_s=0.0,
        )
        for name in dict.fromkeys(offers)
    )
    plan = a_plan(
        batch_size=4,
        grain_size=1,
        num_replicas=len(offers),
        stages=(structs.replace(a_stage(0, 7), offer=offers[0]),),
        replica_offers=offers if len(made) > 1 else (),
        offers=made,
        shares=shares,
    )
    assert plan.predicted is not None
    return structs.replace(plan, predicted=structs.replace(plan.predicted, step_s=step_s, num_steps=100))
