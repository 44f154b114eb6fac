"""Forecasts of a plan before it runs: its prediction, its rates, its bottleneck, and what changes to it would bring."""

import math
from dataclasses import replace

from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.forecast import Change, Forecast, Gain, Rate
from zooid.core.plans.plan import Plan, Prediction
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.units import format_bytes
from zooid.predictor.bottlenecks import find_bottleneck
from zooid.predictor.costs.bill import samples_per_usd, usd_per_million_samples
from zooid.predictor.costs.usage import DataSet
from zooid.predictor.equations import speedup_of_batch, speedup_of_members
from zooid.predictor.losses.loss_sentences import unknown_in_words
from zooid.predictor.prediction import World, gradient_copies, lay_out, predict
from zooid.predictor.stage_memory import stage_memory_bytes
from zooid.schedule.pipelines import most_kept

NUM_NOISY_STEPS = 20


def forecast(
    plan: Plan,
    world: World,
    *,
    prices: str,
    rule: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
) -> Forecast:
    """Forecast a plan.

    `prices` says whose prices they are, `rule` when checkpoints are written, and `data` which data set members load.
    """
    prediction, timeline = predict(plan, world, rule, data, num_noisy_steps=NUM_NOISY_STEPS)
    noiseless, _ = predict(plan, world, rule, data)
    parts = prediction.parts
    assert parts is not None, "predict always simulates a step"
    rate = _rate(prediction, world, plan)
    gains = tuple(_gain(change, plan, world, noiseless, rate, rule, data) for change in _CHANGES)
    schedule, layout = lay_out(plan, world)
    problem, profile = _problem(plan, world), world.profile_of(plan.offer_of(0))
    return Forecast(
        job=profile.job,
        layout=plan.layout,
        prices=prices,
        prediction=prediction,
        step_p50_s=timeline.step_s,
        granularity=parts.granularity,
        rate=rate,
        bottleneck=find_bottleneck(prediction, schedule, layout, gains, noiseless.step_s),
        gains=gains,
        timeline=timeline,
        notes=(
            *unknown_in_words(prediction.losses),
            *filter(None, (problem and f"the plan does not fit: {problem}", profile.assumption)),
        ),
    )


def _rate(prediction: Prediction, world: World, plan: Plan) -> Rate:
    profile = world.profile_of(plan.offer_of(0))
    if not prediction.step_s > 0:
        raise PlanError(f"a step of {profile.job} takes no time by its profile; measure the job again")
    num_samples = profile.num_samples * profile.epochs
    per_usd = samples_per_usd(num_samples, prediction.run_usd)
    return Rate(
        samples_per_s=profile.batch_size / prediction.step_s,
        usd_per_million_samples=usd_per_million_samples(num_samples, prediction.run_usd),
        samples_per_usd=None if math.isinf(per_usd) else per_usd,
    )


_CHANGES: tuple[Change, ...] = ("replica", "batch")


def _gain(
    change: Change,
    plan: Plan,
    world: World,
    before: Prediction,
    rate: Rate,
    rule: CheckpointRule,
    data: DataSet | None,
) -> Gain:
    """Simulate a change.

    Both predictions, `before` and after, are without noise, so that only the change differs. The relative difference
    is then applied to `rate`, which is the forecast's own.
    """
    assert before.parts is not None, "predict always simulates a step"
    granularity = math.inf if before.parts.granularity is None else before.parts.granularity
    if change == "replica":
        num_replicas = plan.num_replicas + 1
        changed, changed_world = structs.replace(plan, num_replicas=num_replicas, shares=(), replica_offers=()), world
        ideal_speedup = float(speedup_of_members(granularity, plan.num_replicas, num_replicas))
    else:
        changed, changed_world = _with_twice_the_batch(plan, world)
        ideal_speedup = float(speedup_of_batch(granularity))
    gain = Gain(change=change, num_members=changed.num_members, batch_size=changed.batch_size)
    if change == "replica" and plan.replica_offers:
        return structs.replace(gain, problem="replicas differ, so the offer of one more replica is unknown")
    if problem := _problem(changed, changed_world):
        return structs.replace(gain, problem=problem)
    try:
        after, _ = predict(changed, changed_world, rule, data)
    except PlanError as error:  # a library's all-reduce was not measured among so many members
        return structs.replace(gain, problem=str(error))
    old, new = _rate(before, world, plan), _rate(after, changed_world, changed)
    speedup = new.samples_per_s / old.samples_per_s - 1
    usd_change = None
    if old.usd_per_million_samples:
        usd_change = new.usd_per_million_samples / old.usd_per_million_samples - 1
    factor = 1 + (usd_change or 0.0)
    return structs.replace(
        gain,
        rate=Rate(
            samples_per_s=rate.samples_per_s * (1 + speedup),
            usd_per_million_samples=rate.usd_per_million_samples * factor,
            samples_per_usd=None if rate.samples_per_usd is None else rate.samples_per_usd / factor,
        ),
        speedup=speedup,
        usd_change=usd_change,
        by_granularity=ideal_speedup - 1,
    )


def _with_twice_the_batch(plan: Plan, world: World) -> tuple[Plan, World]:
    """The same members and grains with a batch of twice the samples."""
    is_even = plan.batch_size % plan.grain_size == 0
    profiles = {
        name: structs.replace(profile, batch_size=2 * profile.batch_size) for name, profile in world.profiles.items()
    }
    shares = tuple(2 * share for share in plan.shares) if is_even else ()
    changed = structs.replace(plan, batch_size=2 * plan.batch_size, shares=shares)
    return changed, replace(world, profiles=profiles)


def _problem(plan: Plan, world: World) -> str:
    """Reason why the plan is infeasible. Empty if it is feasible."""
    profile = world.profile_of(plan.offer_of(0))
    num_grains = math.ceil(profile.batch_size / plan.grain_size)
    if num_grains < plan.num_replicas:
        return f"a batch of {profile.batch_size} has only {num_grains} grain(s) of {plan.grain_size}"
    if profile.batch_size > profile.num_samples:
        return f"the data set has only {profile.num_samples} samples"
    return _memory_problem(plan, world)


def _memory_problem(plan: Plan, world: World) -> str:
    """Reason why a stage exceeds its offer's memory, or all members together exceed that of their machine."""
    schedule, _ = lay_out(plan, world)
    offers = plan.offer_rows[0]
    copies = gradient_copies(plan, [len(grains) for grains in schedule.grains])
    needs = []
    for stage, (offer, span) in enumerate(zip(offers, plan.partition, strict=True)):
        grains_kept = max(most_kept(actions[stage]) for actions in schedule.lists)
        needed = stage_memory_bytes(world.profile_of(offer), *span, plan.grain_size, grains_kept, **copies)
        needs.append(needed)
        if needed > offer.member_bytes:
            return (
                f"stage {stage} needs {format_bytes(needed)}, but {offer.name} has {format_bytes(offer.member_bytes)}"
            )
    together, machine = plan.num_replicas * sum(needs), offers[0]
    if machine.site == "local" and together > machine.memory_bytes:
        return (
            f"{plan.num_members} members need {format_bytes(together)} together, but this machine has "
            f"{format_bytes(machine.memory_bytes)}"
        )
    return ""
