"""Bayesian optimisation of replicas, cuts, and the size of every stage at once (FuncPipe §5.1, Appendix D).

A Gaussian process over everything that was evaluated, and the next evaluation where the expected improvement is the
largest, of a pool of random plans. As in the paper a model evaluates them, here the simulator, a hundred times. Unlike
in the paper, plans that do not fit their members are never drawn.
"""

import itertools
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.baselines.lambda_ml import has_work
from zooid.core.plans.plan import Plan
from zooid.planner import Market
from zooid.planner.drafts import Draft, draft, evaluate
from zooid.planner.families import grain_sizes, schedules
from zooid.planner.objectives import Objective
from zooid.predictor.equations.array_checks import Array

NUM_EVALUATIONS = 100
"""The paper's."""
NUM_DRAWN = 1000
NUM_FIRST = 10
"""Taken at random, before there is anything to learn from."""
REFIT_EVERY = 10
"""The kernel's own numbers are fitted again after so many evaluations."""


def bayes(
    market: Market, max_members: int, objective: Objective, *, num_evaluations: int = NUM_EVALUATIONS, seed: int = 0
) -> list[Plan]:
    """All plans that were evaluated."""
    generator = random.Random(seed)
    pool = _pool(market, max_members, generator)
    places = np.array([_place(made.plan, market, max_members) for made in pool])
    process: Any = None
    tried: list[int] = []
    values: list[float] = []
    plans: list[Plan] = []
    while len(plans) < min(num_evaluations, len(pool)):
        if len(plans) < NUM_FIRST:
            at = len(plans)  # the pool has no order
        else:
            process = _fitted(places[tried], np.array(values), process, refit=len(plans) % REFIT_EVERY == 0)
            gains = _expected_improvement(process, places, min(values))
            gains[tried] = -np.inf
            at = int(gains.argmax())
        plan = evaluate(pool[at])
        plans.append(plan)
        tried.append(at)
        values.append(math.log(objective(plan.prediction.run_s, plan.prediction.run_usd)))
    return plans


def _pool(market: Market, max_members: int, generator: random.Random) -> list[Draft]:
    drawn = dict.fromkeys(_drawn(market, max_members, generator) for _ in range(NUM_DRAWN))
    drafts = [draft(proposal, market) for proposal in drawn if has_work(market, *_work(proposal))]
    return [made for made in drafts if made.missing_bytes <= 0]


def _work(proposal: Plan) -> tuple[int, int]:
    return proposal.num_replicas, proposal.grain_size


def _drawn(market: Market, max_members: int, generator: random.Random) -> Plan:
    num_layers = len(market.profile.layers)
    num_replicas = generator.randint(1, max_members)
    num_stages = generator.randint(1, min(max_members // num_replicas, num_layers))
    cuts = sorted(generator.sample(range(1, num_layers), num_stages - 1))
    schedule, ahead = generator.choice(schedules(None, num_stages))
    return market.plan(
        tuple(itertools.pairwise((0, *cuts, num_layers))),
        tuple(generator.choice(market.offers) for _ in range(num_stages)),
        num_replicas=num_replicas,
        grain_size=generator.choice(grain_sizes(market.profile)),
        schedule=schedule,
        ahead=ahead,
        transport="store",
    )


def _place(proposal: Plan, market: Market, max_members: int) -> list[float]:
    """A plan as numbers between 0 and 1: stages that are not there begin behind the model, and have no size."""
    num_layers = len(market.profile.layers)
    sizes = [math.log(offer.memory_bytes) for offer in market.offers]
    least, most = min(sizes), max(sizes)
    missing = max_members - len(proposal.partition)
    begins = [first / num_layers for first, _ in proposal.partition]
    members = [(math.log(offer.memory_bytes) - least) / max(most - least, 1e-9) for offer in proposal.offer_rows[0]]
    return [
        proposal.num_replicas / max_members,
        len(proposal.partition) / max_members,
        math.log(proposal.grain_size) / math.log(max(2, market.profile.batch_size)),
        float(proposal.schedule == "gpipe"),
        float(proposal.ahead > 0),
        *begins,
        *[1.0] * missing,
        *members,
        *[0.0] * missing,
    ]


def _fitted(places: Array, values: Array, before: Any, *, refit: bool) -> Any:
    if before is None or refit:
        process = GaussianProcessRegressor(ConstantKernel() * Matern(nu=2.5) + WhiteKernel(1e-3), normalize_y=True)
    else:
        process = GaussianProcessRegressor(before.kernel_, optimizer=None, normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a number of the kernel at its bound does no harm
        return process.fit(places, values)


def _expected_improvement(process: Any, places: Array, best: float) -> Array:
    mean, deviation = process.predict(places, return_std=True)
    deviation = np.maximum(deviation, 1e-12)
    z = (best - mean) / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: Array = (best - mean) * _normal_share(z) + deviation * density
    return improvement


def _normal_share(z: Sequence[float]) -> Array:
    """Of a normal distribution, what lies below."""
    return np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
