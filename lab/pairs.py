"""Two plans of rented members, side by side in rehearsals: each member in a network namespace of its own, compute
asleep, bytes and rates divided by a factor, which leaves two cores enough and changes no time, but for messages large
enough to be cut into chunks, which have fewer of them."""

import json
import statistics
import sys
from dataclasses import dataclass, field

from lab.load import Busy
from lab.miniature import Miniature
from lab.rehearsals import Site, site
from zooid.core.plans.plan import Plan
from zooid.planner import Market, in_words

WARM_UP = 2
"""Steps that do not count: connections gather speed, and readers learn when to look."""
MEASURED_S = 8.0
LEAST_STEPS, MOST_STEPS = 2, 20
LEAST_ROUND_TRIP_S = 1e-3
"""What is nearer is as near as namespaces are anyway."""


@dataclass(frozen=True)
class Step:
    """Simulated and rehearsed."""

    simulated_s: float
    rehearsed_s: float
    busy: float
    """Share of this machine's cores that were at work meanwhile."""

    @property
    def delay(self) -> float:
        """How much longer it took than it should."""
        return self.rehearsed_s / self.simulated_s


@dataclass
class Rehearsals:
    """Plans of one market, each rehearsed once."""

    market: Market
    factor: float
    _known: dict[Plan, Step] = field(default_factory=dict)

    def step(self, plan: Plan) -> Step:
        if plan not in self._known:
            self._known[plan] = self._rehearse(plan)
            print(json.dumps({"plan": in_words(plan), **vars(self._known[plan])}), file=sys.stderr, flush=True)
        return self._known[plan]

    def _rehearse(self, plan: Plan) -> Step:
        small = Miniature.of(plan, self.market.world, self.factor)
        simulated_s = small.step_s
        if plan.num_members == 1:  # which exchanges nothing
            return Step(simulated_s, simulated_s, 0.0)
        way = self.market.links_of(plan.offers[0], is_direct=plan.is_direct)[0]
        round_trip_s = way.rtt_s if way.rtt_s >= LEAST_ROUND_TRIP_S else 0.0
        num_steps = max(LEAST_STEPS, min(MOST_STEPS, round(MEASURED_S / simulated_s)))
        with site(plan.num_members, int(way.bytes_per_s / self.factor), round_trip_s) as lab:
            return _measured(small, lab, num_steps, simulated_s)


def _measured(small: Miniature, lab: Site, num_steps: int, simulated_s: float) -> Step:
    busy = Busy()
    steps = small.rehearse(lab, WARM_UP + num_steps, busy.on_event)
    return Step(simulated_s, statistics.fmean(steps.steps_s[WARM_UP:]), busy.share)
