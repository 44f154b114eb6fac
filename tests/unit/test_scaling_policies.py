"""Scaling policies: what they want, what they reject, and how the noise scale is estimated."""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler

import zooid
from tests.unit.predicted import a_profile, rented
from tests.unit.profiles import link
from zooid.coordinator.plans.offer_names import one_or_sizes
from zooid.coordinator.plans.remaining_steps import plan_the_rest
from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.jobs.scaling import History, Policy, Wanted, adabatch, fixed, noise_scale, schedule
from zooid.core.resources.link import STORE_SITE
from zooid.core.runs.batch_history import BatchPiece
from zooid.core.runs.checkpoint import CheckpointManifest, Ledger, SampleFacts
from zooid.core.runs.events import BatchChanged, MemberStarted, RunStarted, ScalingWanted, StepCommitted
from zooid.core.runs.gradient_noise import NoiseEstimate, first_grain_sizes
from zooid.core.runs.roster import Roster, RosterMember, StepNumbers
from zooid.planner import search, single
from zooid.report import view_for
from zooid.schedule.step_state import Vote
from zooid.schedule.succession import grains_of
from zooid.worker.member.batch_changes import known_changes
from zooid.worker.state.rate_factors import scaled_rates


def history(epoch: int, batch_size: int = 32, **known: Any) -> History:
    pieces = known.pop("batches", (BatchPiece(first_step=0, batch_size=batch_size),))
    return History(step=10 * epoch, epoch=epoch, batches=pieces, **known)


def simulated(policy: Policy, num_epochs: int, batch_size: int) -> list[tuple[int, float, int]]:
    """Batch size, rate factor and replicas of each epoch, if all that the policy wants is done."""
    pieces: tuple[BatchPiece, ...] = (BatchPiece(first_step=0, batch_size=batch_size),)
    replicas = 1
    found = [(batch_size, 1.0, 1)]
    for epoch in range(1, num_epochs):
        wanted = policy.ask(history(epoch, batches=pieces, num_replicas=replicas))
        last = pieces[-1]
        batch_size, factor = wanted.batch_size or last.batch_size, wanted.rate_factor or last.rate_factor
        replicas = wanted.num_replicas or replicas
        pieces = (*pieces, BatchPiece(first_step=10 * epoch, batch_size=batch_size, rate_factor=factor))
        found.append((batch_size, factor, replicas))
    return found


def test_adabatch_is_that_of_hydrozoa() -> None:
    """§5.4: from 1 to 16 workers of 256 samples each, with a decay of 0.75; without doubling it would be 0.375."""
    found = simulated(adabatch(every=5, max_batch=16 * 256), 30, 256)
    assert found[:5] == [(256, 1.0, 1)] * 5
    assert found[5:10] == [(512, 0.75, 2)] * 5
    assert found[20:25] == [(4096, 0.75**4, 16)] * 5
    assert found[25:] == [(4096, 0.75**4 * 0.375, 16)] * 5


def test_a_replica_for_every_so_many_samples_does_not_depend_on_those_that_train() -> None:
    policy = adabatch(every=1, max_batch=64, per_replica=24)
    assert policy.ask(history(1, num_replicas=5)).num_replicas == 3
    assert noise_scale(max_batch=64, per_replica=32).ask(history(1, noise_scale=99.0)).num_replicas == 2


def test_a_schedule_keeps_what_it_does_not_name() -> None:
    policy = schedule({4: Wanted(rate_factor=0.1), 2: 64, 6: Wanted(batch_size=16, num_replicas=3)})
    found = simulated(policy, 8, 32)
    assert found == [(32, 1.0, 1)] * 2 + [(64, 1.0, 1)] * 2 + [(64, 0.1, 1)] * 2 + [(16, 0.1, 3)] * 2
    assert policy.max_batch == 64
    assert simulated(fixed(), 3, 32) == [(32, 1.0, 1)] * 3


class TestNoiseScale:
    def test_the_batch_follows_the_noise_up_to_the_largest(self) -> None:
        policy = noise_scale(max_batch=128)
        assert policy.ask(history(1)) == policy.ask(history(1, noise_scale=63.0)) == Wanted()
        wanted = policy.ask(history(1, noise_scale=96.0, num_replicas=3))
        assert (wanted.batch_size, wanted.num_replicas) == (64, 6)
        assert wanted.rate_factor == pytest.approx((1 + 96 / 32) / (1 + 96 / 64)), "equation 2.6"
        assert policy.ask(history(1, batch_size=128, noise_scale=1e9)) == Wanted()

    def test_a_gradient_that_is_all_noise_scales_the_rate_with_the_batch(self) -> None:
        wanted = noise_scale(max_batch=128, factor=4).ask(history(1, noise_scale=math.inf))
        assert (wanted.batch_size, wanted.rate_factor) == (128, 4.0)

    def test_the_estimate_finds_the_noise_of_gradients_that_are_known(self) -> None:
        """Gradients of samples are normal around G with a variance of 1 in each of 50 directions."""
        generator = np.random.default_rng(0)
        true_gradient = np.full(50, 0.2)
        estimate = NoiseEstimate()
        traces, norms = [], []
        for _ in range(3000):
            samples = true_gradient + generator.normal(size=(64, 50))
            sizes = [8, 16]
            small = [samples[:8].mean(0), samples[8:24].mean(0)]
            squares = [float(each @ each) for each in small]
            whole = samples.mean(0)
            new = NoiseEstimate().after(sum(squares) / 2, sizes, float(whole @ whole), 64)
            estimate = estimate.after(sum(squares) / 2, sizes, float(whole @ whole), 64)
            traces.append(new.trace)
            norms.append(new.square_norm)
        assert np.mean(traces) == pytest.approx(50, rel=0.02), "tr(Σ)"
        assert np.mean(norms) == pytest.approx(2.0, rel=0.02), "|G|²"
        assert estimate.scale == pytest.approx(25, rel=0.3), "from about 20 steps"

    def test_few_steps_say_nothing(self) -> None:
        estimate = NoiseEstimate()
        for _ in range(9):
            estimate = estimate.after(3.0, [2], 1.5, 8)
            assert estimate.scale is None
        assert estimate.after(3.0, [2], 1.5, 8).scale == pytest.approx(4.0 / 1.0)

    def test_only_replicas_that_still_have_the_gradient_of_their_first_grain_measure_it(self) -> None:
        grains = [(0, 1), (2,), ()]
        assert first_grain_sizes(grains, 10, 4, keeps_single=True) == [4, 2, None]
        assert first_grain_sizes(grains, 10, 4, keeps_single=False) == [4, None, None]
        assert first_grain_sizes([(0,), ()], 3, 4, keeps_single=True) == [None, None], "nothing to compare it with"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Wanted(batch_size=0), "`batch_size` of zooid.scaling.Wanted is 0; give a whole number of at least 1"),
        (lambda: Wanted(num_replicas=1.5), "`num_replicas` of zooid.scaling.Wanted is 1.5"),  # type: ignore[arg-type]
        (lambda: Wanted(rate_factor=-1.0), "`rate_factor` of zooid.scaling.Wanted is -1.0; give a finite number above"),
        (lambda: schedule({0: 64}), "has epoch 0; give whole numbers of at least 1"),
        (lambda: schedule({3: "64"}), "has '64' for epoch 3; give a batch size or"),  # type: ignore[dict-item]
        (lambda: adabatch(every=0, max_batch=64), "`every` of zooid.scaling.adabatch is 0"),
        (lambda: adabatch(every=1, max_batch=64, factor=1), "`factor` of zooid.scaling.adabatch is 1; .* at least 2"),
        (lambda: adabatch(every=1, max_batch=64, decay=math.inf), "`decay` of zooid.scaling.adabatch is inf"),
        (lambda: adabatch(every=1, max_batch=64, per_replica=0), "`per_replica` of zooid.scaling.adabatch is 0"),
        (lambda: noise_scale(max_batch=0), "`max_batch` of zooid.scaling.noise_scale is 0"),
        (lambda: Policy(lambda: None), "must take one argument, the history of the run"),  # type: ignore[arg-type,misc]
        (lambda: Policy(lambda history: None, every_steps=0), "`every_steps` of a scaling policy is 0"),
    ],
)
def test_what_cannot_be_wanted_is_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        build()


def a_job(scaling: Any) -> Job:
    nothing: Any = list
    return Job(model=nothing, loss=None, data=nothing, optimizer=nothing, batch_size=8, epochs=2, scaling=scaling)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (7, "job.scaling is 7; give a policy such as"),
        (lambda: None, "must take one argument"),
        (adabatch(every=1, max_batch=4), "at most 4 samples, but job.batch_size is 8"),
    ],
)
def test_a_job_rejects_a_policy_that_cannot_work(scaling: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        a_job(scaling)


def test_a_function_is_a_policy_that_is_asked_after_every_epoch() -> None:
    policy = a_job(lambda history: Wanted(batch_size=2 * history.batch_size)).policy
    assert policy is not None
    assert (policy.every_steps, policy.measures_noise) == (None, False)
    assert policy.ask(history(3)).batch_size == 64


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda history: 64, r"returned 64 before step 10; return zooid.scaling.Wanted\(…\), or None"),
        (lambda history: history.losses[-1], "raised IndexError before step 10"),
    ],
)
def test_a_policy_that_fails_is_named(decide: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        Policy(decide).ask(history(1))


@pytest.mark.parametrize(
    "new_scheduler", [lambda own: ExponentialLR(own, 0.5), lambda own: LambdaLR(own, lambda step: 0.5**step)]
)
def test_a_factor_leaves_the_scheduler_its_own_rates(
    new_scheduler: Callable[[torch.optim.Optimizer], LRScheduler],
) -> None:
    """Whether it computes a rate from the last one or from the first."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = new_scheduler(optimizer)
    for factor in (1.0, 3.0, 0.25):
        weight.grad = -torch.ones_like(weight)
        with scaled_rates(optimizer, factor):
            optimizer.step()
        scheduler.step()
    assert float(weight.detach()) == 1.0 * 1.0 + 0.5 * 3.0 + 0.25 * 0.25
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_a_division_of_another_number_of_grains_does_not_count() -> None:
    """The writer of a roster may not know of a batch size that begins with its first step."""
    members = tuple(RosterMember(name=f"m{replica}", stage=0, replica=replica) for replica in range(2))
    roster = Roster(run="r", number=0, resume_step=5, members=members, shares=(2, 2), grains=((0, 1, 2), (3,)))
    assert grains_of(roster, 5, 4) == ((0, 1, 2), (3,))
    assert grains_of(roster, 5, 8) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert grains_of(roster, 5, 2) == [(0,), (1,)]


def test_even_shares_stay_even_when_the_batch_grows() -> None:
    members = tuple(RosterMember(name=f"m{replica}", stage=0, replica=replica) for replica in range(2))
    even = Roster(run="r", number=0, resume_step=0, members=members, shares=(2, 1))
    uneven = Roster(run="r", number=0, resume_step=0, members=members, shares=(3, 1))
    assert [len(own) for own in grains_of(even, 7, 12)] == [6, 6]
    assert [len(own) for own in grains_of(even, 7, 3)] == [2, 1]
    assert [len(own) for own in grains_of(uneven, 7, 12)] == [9, 3]


def test_members_that_apply_a_standing_step_take_the_change_of_those_that_had_applied_it() -> None:
    numbers = StepNumbers(loss_sum=1.0, weight=2.0, square_sums=(1.0,), batch_size=64, rate_factor=0.5)
    total = known_changes(Vote(first_square_sum=9.0, noise_square_sum=9.0), numbers)
    assert (total.batch_size, total.rate_factor, total.first_square_sum) == (64, 0.5, 0.0)
    unchanged = StepNumbers(loss_sum=1.0, weight=2.0, square_sums=(1.0,), batch_size=0)
    assert known_changes(Vote(batch_size=32.0, rate_factor=1.0), unchanged).batch_size == 0
    nobody = StepNumbers(loss_sum=1.0, weight=2.0, square_sums=(1.0,))
    asked_again = known_changes(Vote(batch_size=32.0, rate_factor=1.0), nobody)
    assert (asked_again.batch_size, asked_again.rate_factor) == (32.0, 1.0)


def test_predictions_of_a_job_with_a_policy_say_for_which_batch_they_hold() -> None:
    profile = a_profile(has_policy=True)
    plan = search(single(profile, rented()), zooid.Limits(), "fastest").pick
    sentence = "the job has a scaling policy; times and costs hold for its first batch size, 16 samples"
    assert sentence in zooid.predict(plan, profile).notes
    assert zooid.predict(plan, a_profile()).notes == ()


def test_the_rest_of_a_run_is_planned_by_its_samples() -> None:
    """Half of the samples are left, whether the steps before had the job's batch size or a larger one."""
    profile = a_profile(epochs=1)
    plain = a_manifest(500)
    grown = a_manifest(375, BatchPiece(first_step=250, batch_size=32))
    plans = [
        plan_the_rest(profile, manifest, [rented()], zooid.Limits(num_replicas=2), "fastest")
        for manifest in (plain, grown)
    ]
    assert plans[0] == plans[1]
    assert plans[0].num_steps == 1000, "with the job's batch size, as in any plan"


def test_the_rest_of_a_run_whose_sizes_were_chosen_gets_chosen_sizes() -> None:
    site = "aws.us-east-1.lambda"
    links = [link(7e7, 0.04, from_site=site), link(7e7, 0.04, from_site=STORE_SITE, to_site=site)]
    sizes = one_or_sizes("aws.lambda")
    plan = plan_the_rest(a_profile(epochs=1), a_manifest(500), sizes, zooid.Limits(num_stages=1), "cheapest", links)
    [offer] = plan.offers
    assert offer.name.startswith("aws.lambda.")
    assert (offer.sized_by, offer.lifetime_s) == ("", sizes[0].lifetime_s)
    assert offer.memory_bytes > plan.stages[0].memory_bytes


def a_manifest(step: int, *batches: BatchPiece) -> CheckpointManifest:
    return CheckpointManifest(
        step=step,
        model_fingerprint="f",
        samples=SampleFacts(num_samples=16_000, batch_size=16, grain_size=4, epochs=1, seed=0),
        optimizer_class="SGD",
        shards=(),
        constants=(),
        aliases={},
        ledger=Ledger(batches=batches),
    )


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_follows_a_change_of_the_batch(is_terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=150)
    with view_for(console, as_json=False) as view:
        view.show(
            RunStarted(
                at_s=0.0,
                run="7",
                store="memory://",
                layout="1x1",
                num_steps=40,
                first_step=0,
                batch_size=16,
                predicted_step_s=None,
                predicted_run_s=None,
                predicted_usd=None,
                members=("r0s0",),
                prices="free",
            )
        )
        view.show(MemberStarted(at_s=0.0, member="r0s0", num_layers=1, parameter_bytes=8))
        view.show(ScalingWanted(at_s=1.0, step=20, num_replicas=4))
        view.show(BatchChanged(at_s=1.0, step=20, batch_size=32, rate_factor=0.5, num_steps=30))
        view.show(StepCommitted(at_s=2.0, step=29, epoch=1, loss=1.0, num_samples=32, step_s=0.1))
    text = output.getvalue()
    assert "from step 21 on: batches of 32 samples, learning rate × 0.5; 30 steps in all" in text
    assert "the scaling policy wants 4 replica(s) from step 21 on" in text
    assert "30/30" in text
