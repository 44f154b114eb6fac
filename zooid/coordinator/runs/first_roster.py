"""The first roster of a claim, which the coordinator writes."""

import math

from zooid.core.plans.plan import Plan
from zooid.core.runs.roster import Roster, RosterMember, RosterSeat
from zooid.schedule.samples import even_shares


def roster_for(plan: Plan, run: str, number: int, resume_step: int) -> Roster:
    """Return a roster with a seat for every stage of every replica, and for every copy."""
    num_grains = math.ceil(plan.batch_size / plan.grain_size)
    return Roster(
        run=run,
        number=number,
        resume_step=resume_step,
        members=tuple(
            RosterMember(name=f"r{replica}s{stage}", stage=stage, replica=replica)
            for replica in range(plan.num_replicas)
            for stage in range(len(plan.stages))
        ),
        shares=plan.shares or even_shares(num_grains, plan.num_replicas),
        copies=tuple(RosterSeat(name=f"c0s{stage}", stage=stage) for stage in range(plan.num_copies)),
    )
