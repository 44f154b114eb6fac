"""Step times learnt from few measured steps: of a world whose truth is known, and of real GPUs."""

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import pytest

from benchmarks import step_times
from zooid.core.errors import InputError
from zooid.core.records import InvalidValue
from zooid.predictor import ScalingModel, StepProbe, fit_scaling

BATCHES = (16, 32, 64, 128, 256)
SMALL = tuple(
    placement
    for num_nodes in range(1, 5)
    for placement in itertools.combinations_with_replacement(range(1, 5), num_nodes)
    if sum(placement) <= 8
)


def true_step(placement: Sequence[int], local_batch: int) -> tuple[float, float]:
    """Step and computing in a world of its own: sync grows with members, and half of computing hides it."""
    compute_s = 0.05 + 0.002 * local_batch
    members, nodes = sum(placement), len(placement)
    if members == 1:
        return compute_s, compute_s
    sync_s = 0.3 * nodes**0.25 * (members / nodes) ** 0.15 if nodes > 1 else 0.02
    return compute_s / 2 + max(compute_s / 2, sync_s), compute_s


def probe(placement: tuple[int, ...], local_batch: int, noise: float = 0.0, with_sync: bool = True) -> StepProbe:
    step_s, compute_s = true_step(placement, local_batch)
    factor = math.exp(noise)
    return StepProbe(
        placement=placement,
        local_batch=local_batch,
        step_s=step_s * factor,
        sync_s=(step_s - compute_s) * factor if with_sync else None,
    )


def mean_error(model: ScalingModel, asked: Sequence[tuple[tuple[int, ...], int]]) -> float:
    predicted = model.predict_all(asked)
    return statistics.mean(
        abs(step.step_s / true_step(*question)[0] - 1) for question, step in zip(asked, predicted, strict=True)
    )


def drawn(num: int, seed: int, noise: float = 0.0, with_sync: bool = True) -> list[StepProbe]:
    draw = random.Random(seed)
    questions = draw.sample(list(itertools.product(SMALL, BATCHES)), num)
    return [probe(placement, batch, draw.gauss(0, noise), with_sync) for placement, batch in questions]


@pytest.mark.parametrize("with_sync", [True, False], ids=["step and sync", "step alone"])
@pytest.mark.parametrize("seed", range(3))
def test_what_was_not_measured_is_predicted_within_a_few_percent(seed: int, with_sync: bool) -> None:
    model = fit_scaling(drawn(40, seed, noise=0.02, with_sync=with_sync))
    assert mean_error(model, list(itertools.product(SMALL, BATCHES))) < 0.04


@pytest.mark.parametrize("seed", range(3))
def test_eight_members_tell_of_sixty_four(seed: int) -> None:
    model = fit_scaling(drawn(40, seed, noise=0.02))
    asked = [((each,) * nodes, batch) for each in (1, 4) for nodes in (8, 16) for batch in BATCHES]
    assert mean_error(model, asked) < 0.1


def test_computing_is_told_apart_from_waiting() -> None:
    step = fit_scaling(drawn(40, seed=0)).predict((2, 2), 32)
    step_s, compute_s = true_step((2, 2), 32)
    assert step.step_s == pytest.approx(step_s, rel=0.05)
    assert step.compute_s == pytest.approx(compute_s, rel=0.05)


def test_one_stuttering_row_in_ten_hardly_moves_the_others() -> None:
    probes = drawn(40, seed=0, noise=0.01)
    spoilt = [
        probe(row.placement, row.local_batch, noise=1.0) if number % 10 == 0 else row
        for number, row in enumerate(probes)
    ]
    asked = list(itertools.product(SMALL, BATCHES))
    assert mean_error(fit_scaling(spoilt), asked) < mean_error(fit_scaling(probes), asked) + 0.03


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_units_do_not_matter(scale: float) -> None:
    probes = drawn(30, seed=1, noise=0.02)
    scaled = [
        StepProbe(
            placement=row.placement,
            local_batch=row.local_batch * 7,
            step_s=row.step_s * scale,
            sync_s=None if row.sync_s is None else row.sync_s * scale,
        )
        for row in probes
    ]
    plain, other = fit_scaling(probes).predict((4, 4), 64), fit_scaling(scaled).predict((4, 4), 64 * 7)
    assert other.step_s == pytest.approx(plain.step_s * scale, rel=1e-3)
    assert other.spread == pytest.approx(plain.spread, rel=1e-2)


def test_noisier_probes_and_farther_questions_have_a_wider_spread() -> None:
    calm, noisy = (fit_scaling(drawn(40, seed=0, noise=noise)) for noise in (0.01, 0.15))
    assert noisy.predict((2, 2), 64).spread > 1.5 * calm.predict((2, 2), 64).spread
    assert calm.predict((1,) * 64, 16).spread > calm.predict((1,) * 4, 16).spread


def test_two_thirds_of_measured_steps_are_within_the_spread() -> None:
    model = fit_scaling(drawn(60, seed=2, noise=0.08))
    draw = random.Random(3)
    inside = [
        abs(math.log(true_step(placement, batch)[0]) + draw.gauss(0, 0.08) - math.log(step.step_s)) < step.spread
        for placement, batch in itertools.product(SMALL, BATCHES)
        for step in [model.predict(placement, batch)]
    ]
    assert 0.5 < statistics.mean(inside) < 0.9


def test_what_lies_beyond_the_probes_says_so() -> None:
    model = fit_scaling([row for row in drawn(60, seed=0) if sum(row.placement) < 8])
    assert model.predict((2, 2), 64).beyond == ()
    assert model.predict((4,) * 16, 512).beyond == (
        "64 members, measured up to 7",
        "16 nodes, measured up to 4",
        "a local batch of 512, measured from 16 to 256",
    )
    assert model.predict((5,), 64).beyond == ("5 members on one node, measured up to 4",)


def test_several_members_on_a_node_that_were_only_seen_across_nodes_are_beyond() -> None:
    model = fit_scaling([row for row in drawn(60, seed=0) if len(row.placement) > 1])
    assert model.predict((3,), 64).beyond == ("several members on a single node, measured only across nodes",)


def test_the_network_between_nodes_is_not_guessed() -> None:
    model = fit_scaling([probe((members,), batch) for members in (1, 2, 4) for batch in BATCHES])
    assert model.predict((2,), 64).step_s == pytest.approx(true_step((2,), 64)[0], rel=0.03)
    with pytest.raises(InputError, match="every probe was on a single one"):
        model.predict((2, 2), 64)


def test_too_few_probes_are_refused() -> None:
    with pytest.raises(InputError, match=r"^7 probes .* too few .* at least 8"):
        fit_scaling(drawn(7, seed=0))
    with pytest.raises(InputError, match="1 different local batches"):
        fit_scaling([probe(placement, 64) for placement in SMALL])
    with pytest.raises(InputError, match=r"^0 probes"):
        fit_scaling([])


def test_impossible_steps_are_refused() -> None:
    with pytest.raises(InvalidValue, match="`placement`"):
        StepProbe(placement=(2, 0), local_batch=8, step_s=1.0)
    with pytest.raises(InvalidValue, match="`local_batch`"):
        StepProbe(placement=(2,), local_batch=0, step_s=1.0)
    with pytest.raises(InvalidValue, match="`step_s`"):
        StepProbe(placement=(2,), local_batch=8, step_s=math.nan)
    with pytest.raises(InvalidValue, match="`sync_s`"):
        StepProbe(placement=(2,), local_batch=8, step_s=1.0, sync_s=1.5)
    with pytest.raises(InvalidValue, match="`placement`"):
        fit_scaling(drawn(20, seed=0)).predict((), 8)


@pytest.mark.parametrize(("mode", "most_percent"), list(zip(step_times.MODES, (6.0, 8.0), strict=True)), ids=str)
def test_steps_of_real_gpus_are_predicted(mode: step_times.Mode, most_percent: float) -> None:
    models = step_times.read_models(step_times.DATA)
    if not models:
        pytest.skip(f"no measured step times in {step_times.DATA}")
    rows = [step_times.compare(name, rows, mode, seed) for name, rows in models.items() for seed in range(3)]
    (total,) = step_times.summarise(rows)
    assert isinstance(total["mean_error_percent"], float)
    assert total["mean_error_percent"] <= most_percent
