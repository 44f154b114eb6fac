"""All that is said about a plan before it runs: its prediction, what it costs with the store's charges, what holds it
back, and what one more replica or twice the batch would bring."""

import math
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from zooid.core.errors import PlanError
from zooid.core.plans.forecast import Change, Forecast, Gain, Rate
from zooid.core.plans.plan import Prediction
from zooid.core.runs.checkpoint import DEFAULT_RULE, CheckpointRule
from zooid.core.units import format_bytes
from zooid.predictor.bottlenecks import find_bottleneck
from zooid.predictor.costs.bill import samples_per_usd, usd_per_million_samples
from zooid.predictor.costs.usage import DataSet
from zooid.predictor.equations import speedup_of_batch, speedup_of_members
from zooid.predictor.prediction import Proposal, World, lay_out, predict
from zooid.predictor.stage_memory import stage_memory_bytes
from zooid.schedule.pipelines import most_kept

NUM_NOISY_STEPS = 20


def forecast(
    proposal: Proposal,
    world: World,
    *,
    prices: str,
    rule: CheckpointRule = DEFAULT_RULE,
    data: DataSet | None = None,
    notes: Sequence[str] = (),
) -> Forecast:
    """`prices` says whose they are, `rule` when checkpoints are written, and `data` what is loaded, if anything is."""
    prediction, timeline = predict(proposal, world, rule, data, num_noisy_steps=NUM_NOISY_STEPS)
    plain, _ = predict(proposal, world, rule, data)
    parts = prediction.parts
    assert parts is not None, "predict always simulates a step"
    profile = world.profile_of(proposal.offers[0])
    rate = _rate(prediction, world, proposal)
    gains = tuple(_gain(change, proposal, world, plain, rate, rule, data) for change in _CHANGES)
    schedule, layout = lay_out(proposal, world)
    return Forecast(
        job=profile.job,
        layout=f"{proposal.num_replicas}x{len(proposal.partition)}",
        prices=prices,
        prediction=prediction,
        step_p50_s=timeline.step_s,
        granularity=parts.granularity,
        rate=rate,
        bottleneck=find_bottleneck(prediction, schedule, layout, gains, plain.step_s),
        gains=gains,
        timeline=timeline,
        notes=(*notes, *([f"the plan does not fit: {problem}"] if (problem := _problem(proposal, world)) else [])),
    )


def _rate(prediction: Prediction, world: World, proposal: Proposal) -> Rate:
    profile = world.profile_of(proposal.offers[0])
    if not prediction.step_s > 0:
        raise PlanError(f"a step of {profile.job} takes no time by its profile; measure the job anew")
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
    proposal: Proposal,
    world: World,
    before: Prediction,
    rate: Rate,
    rule: CheckpointRule,
    data: DataSet | None,
) -> Gain:
    """`before` is without noise, as what it is compared with is, so that the change alone is seen; `rate` is that of
    the forecast, to which the difference is applied."""
    assert before.parts is not None, "predict always simulates a step"
    communicated = math.inf if before.parts.granularity is None else before.parts.granularity
    if change == "replica":
        changed = replace(proposal, num_replicas=proposal.num_replicas + 1, shares=())
        changed_world = world
        at_best = float(speedup_of_members(communicated, proposal.num_replicas, changed.num_replicas))
    else:
        changed, changed_world = _with_twice_the_batch(proposal, world)
        at_best = float(speedup_of_batch(communicated))
    batch_size = changed_world.profile_of(proposal.offers[0]).batch_size
    gain = Gain(change=change, num_members=changed.num_members, batch_size=batch_size)
    if problem := _problem(changed, changed_world):
        return structs.replace(gain, problem=problem)
    try:
        after, _ = predict(changed, changed_world, rule, data)
    except PlanError as error:  # a library's all-reduce that was not measured among so many
        return structs.replace(gain, problem=str(error))
    was, now = _rate(before, world, proposal), _rate(after, changed_world, changed)
    speedup = now.samples_per_s / was.samples_per_s - 1
    usd_change = None
    if was.usd_per_million_samples:
        usd_change = now.usd_per_million_samples / was.usd_per_million_samples - 1
    return structs.replace(
        gain,
        rate=_changed(rate, speedup, usd_change),
        speedup=speedup,
        usd_change=usd_change,
        by_granularity=at_best - 1,
    )


def _with_twice_the_batch(proposal: Proposal, world: World) -> tuple[Proposal, World]:
    """On the same members, with the same grains."""
    is_even = world.profile_of(proposal.offers[0]).batch_size % proposal.grain_size == 0
    profiles = {
        name: structs.replace(profile, batch_size=2 * profile.batch_size) for name, profile in world.profiles.items()
    }
    shares = tuple(2 * share for share in proposal.shares) if is_even else ()
    return replace(proposal, shares=shares), replace(world, profiles=profiles)


def _changed(rate: Rate, speedup: float, usd_change: float | None) -> Rate:
    factor = 1 + (usd_change or 0.0)
    return Rate(
        samples_per_s=rate.samples_per_s * (1 + speedup),
        usd_per_million_samples=rate.usd_per_million_samples * factor,
        samples_per_usd=None if rate.samples_per_usd is None else rate.samples_per_usd / factor,
    )


def _problem(proposal: Proposal, world: World) -> str:
    """Why a step cannot be done like this; empty where it can."""
    profile = world.profile_of(proposal.offers[0])
    num_grains = math.ceil(profile.batch_size / proposal.grain_size)
    if num_grains < proposal.num_replicas:
        return f"a batch of {profile.batch_size} has only {num_grains} grain(s) of {proposal.grain_size}"
    if profile.batch_size > profile.num_samples:
        return f"the data set has only {profile.num_samples} samples"
    return _memory_problem(proposal, world)


def _memory_problem(proposal: Proposal, world: World) -> str:
    """Every stage has to fit into its offer, and members that share a machine into that."""
    schedule, _ = lay_out(proposal, world)
    needs = [
        stage_memory_bytes(
            world.profile_of(offer),
            *span,
            proposal.grain_size,
            max(most_kept(stages[stage]) for stages in schedule.lists),
            **proposal.gradient_copies([len(own) for own in schedule.grains]),
        )
        for stage, (offer, span) in enumerate(zip(proposal.offers, proposal.partition, strict=True))
    ]
    for stage, (offer, needed) in enumerate(zip(proposal.offers, needs, strict=True)):
        if needed > offer.memory_bytes:
            return (
                f"stage {stage} needs {format_bytes(needed)}, but {offer.name} has {format_bytes(offer.memory_bytes)}"
            )
    together, shared = proposal.num_replicas * sum(needs), proposal.offers[0]
    if shared.site == "local" and together > shared.memory_bytes:
        return (
            f"{proposal.num_members} members need {format_bytes(together)} together, but this machine has "
            f"{format_bytes(shared.memory_bytes)}"
        )
    return ""
