"""Batch sizes and learning rates that change during a run: the result is that of a plain loop with the same changes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from msgspec import structs

import zooid
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers
from tests.integration.test_resume import PAUSE, killed_after
from zooid.coordinator import timeline
from zooid.core.errors import MemberFailed
from zooid.core.jobs.job import load_job
from zooid.core.runs.batch_history import BatchPiece
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.events import (
    BatchChanged,
    Evaluated,
    Event,
    RosterChanged,
    RunStarted,
    ScalingWanted,
    StepCommitted,
)
from zooid.core.runs.gradient_noise import NoiseEstimate
from zooid.layers import build_model, check_data, collate, is_in_order
from zooid.schedule.samples import SamplePlan, split_grains
from zooid.store import open_store
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.history import read_history

pytestmark = pytest.mark.timeout(300)

TOLERANCE = 1e-9
NUM_SAMPLES = 150
SCHEDULED = {
    "batch_size": "20",
    "epochs": "4",
    "scheduler": "lambda own: torch.optim.lr_scheduler.StepLR(own, step_size=5, gamma=0.7)",
    "scaling": "zooid.scaling.schedule({1: zooid.scaling.Wanted(batch_size=50, rate_factor=0.5), 3: 35})",
}
PIECES = (
    BatchPiece(first_step=8, batch_size=50, rate_factor=0.5),
    BatchPiece(first_step=14, batch_size=35, rate_factor=0.5),
)
"""Epochs of 8, 3, 3 and 5 steps."""
NUM_STEPS = 19


def plain_loop(job_file: Path) -> Trained:
    """The user's own model, a whole step at once, with the batch sizes and rates of the job's schedule by hand."""
    job = load_job(job_file)
    data = check_data(job)
    model = build_model(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    rates: list[float] = []
    for epoch in range(4):
        batch_size = [20, 50, 50, 35][epoch]
        factor = [1.0, 0.5, 0.5, 0.5][epoch]
        order = SamplePlan.of(job, NUM_SAMPLES, 6, is_in_order=is_in_order(data)).order(epoch).tolist()
        for first in range(0, NUM_SAMPLES, batch_size):
            batch = collate(data, order[first : first + batch_size], job)
            rate = 1e-2 * 0.7 ** (len(losses) // 5) * factor
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = F.cross_entropy(model(*batch.args), batch.target)
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()))
            rates.append(rate)
    return Trained(tuple(losses), model.state_dict(), rates=tuple(rates))


STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        return iter(build_data())

"""


@pytest.mark.parametrize(
    ("num_replicas", "cuts", "reproducible", "own"),
    [
        (1, (2,), False, {"data": "Stream", "num_samples": "150"}),
        (2, (), False, {"data_workers": "1"}),
        (2, (2,), True, {"data_workers": "2"}),
    ],
    ids=["1x2, data set in order", "2x1, reading ahead", "2x2, reproducible"],
)
def test_a_schedule_trains_as_a_plain_loop_does(
    forking: RecordingPlatform,
    tmp_path: Path,
    num_replicas: int,
    cuts: tuple[int, ...],
    reproducible: bool,
    own: dict[str, str],
) -> None:
    """Samples that were read ahead must be read anew after a change."""
    job_file = write_job(tmp_path / "job.py", dropout=0.0, extra=STREAM, fields={**SCHEDULED, **own})
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=cuts, transport="tcp")
    plan = structs.replace(plan, reproducible=reproducible)
    url, events = (tmp_path / "run").as_uri(), list[Event]()
    result = zooid.train(job_file, store=url, plan=plan, on_event=events.append, platform=forking)
    expected = plain_loop(job_file)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(url) <= TOLERANCE
    steps = [event for event in events if isinstance(event, StepCommitted)]
    assert [event.step for event in steps] == list(range(NUM_STEPS))
    assert [event.num_samples for event in steps] == [20] * 7 + [10] + [50] * 6 + [35] * 4 + [10]
    assert [event.learning_rate for event in steps] == pytest.approx(expected.rates, rel=1e-12)
    changed = [event for event in events if isinstance(event, BatchChanged)]
    assert [(each.step, each.batch_size, each.rate_factor) for each in changed] == [(8, 50, 0.5), (14, 35, 0.5)]
    assert changed[-1].num_steps == NUM_STEPS
    store = open_store(url)
    assert read_manifest(store, last_step(store)).ledger.batches == PIECES


def test_a_run_with_changes_that_was_cut_short_goes_on_in_another_layout(
    forking: RecordingPlatform, tmp_path: Path
) -> None:
    """With dropout, clipping, and evaluations after every epoch. The checkpoint is after a change."""
    own = {
        **SCHEDULED,
        "clip_norm": "0.5",
        "on_event": "pause",
        "evaluation": "build_data",
    }
    job_file = write_job(tmp_path / "job.py", extra=PAUSE, fields=own)
    reference = train_composed_layers(job_file, batches=PIECES)
    assert len(reference.losses) == NUM_STEPS
    url = (tmp_path / "run").as_uri()
    forking.forget()  # members of other tests
    rule, plan = CheckpointRule(every_steps=3), plan_by_hand(job_file, num_replicas=2, transport="tcp")
    with killed_after(12, job_file, forking) as watch:
        zooid.train(job_file, store=url, plan=plan, checkpoints=rule, on_event=watch.append, platform=forking)
    step = last_step(open_store(url))
    assert step > PIECES[0].first_step
    events: list[Event] = []
    other = plan_by_hand(job_file, num_replicas=3, cuts=(), transport="tcp")
    result = zooid.resume(url, plan=other, on_event=events.append, platform=forking)
    [started] = [event for event in events if isinstance(event, RunStarted)]
    assert (started.batch_size, started.num_steps) == (50, 8 + 3 * 3), "since the second change is not known yet"
    rest = Trained(reference.losses[step:], reference.state)
    assert rest.loss_difference(result.losses) <= TOLERANCE
    assert rest.weight_difference(url) <= TOLERANCE
    rates = [event.learning_rate for event in events if isinstance(event, StepCommitted)]
    assert rates == pytest.approx(reference.rates[step:], rel=1e-12)
    history = read_history(open_store(url))
    assert [event.step for event in history if isinstance(event, Evaluated)] == [8, 11, 14, NUM_STEPS]
    assert [event.step for event in history if isinstance(event, BatchChanged)] == [8, 14]


LOSE = """
import os, signal
from pathlib import Path

planned = zooid.scaling.schedule({1: zooid.scaling.Wanted(batch_size=50, rate_factor=0.5), 3: 35})


def lose():
    file = Path(__file__).with_name("lost")
    if not file.exists():
        file.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)


def lose_after(event):
    if type(event).__name__ == "StepCommitted" and event.step == 7:
        lose()


def decide(history):
    if history.epoch == 1:
        lose()
    return planned.ask(history)

"""
MOMENTS = {
    "after the vote that tells of the change": {"on_event": "lose_after"},
    "before its vote, while all others are prepared": {"scaling": "decide"},
    "between an evaluation and the change": {"scaling": "decide", "evaluation": "build_data"},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_survivors_of_the_first_member_agree_on_the_change(
    forking: RecordingPlatform, tmp_path: Path, moment: str
) -> None:
    job_file = write_job(tmp_path / "job.py", extra=LOSE, fields={**SCHEDULED, **MOMENTS[moment]})
    reference = train_composed_layers(job_file, batches=PIECES)
    url, events = (tmp_path / "run").as_uri(), list[Event]()
    plan = plan_by_hand(job_file, num_replicas=3, cuts=(), transport="tcp")
    zooid.train(job_file, store=url, plan=plan, on_event=events.append, platform=forking)
    changes = [event for event in events if isinstance(event, RosterChanged)]
    [changed] = [event for event in changes if event.ruling != "planned"]  # before somebody takes the lost seat
    assert changed.ruling != "rolled_back"
    history = read_history(open_store(url))
    losses = tuple(event.loss for event in history if isinstance(event, StepCommitted))
    assert reference.loss_difference(losses) <= TOLERANCE
    assert reference.weight_difference(url) <= TOLERANCE
    assert [event.step for event in history if isinstance(event, BatchChanged)] == [8, 14]


OWN_POLICY = """
seen = []

def decide(history):
    seen.append(history)
    latest = history.evaluations[-1]
    assert latest.step == history.step, "an evaluation comes before the question"
    if history.epoch == 1:
        assert len(history.losses) == len(history.step_s) == history.step == 8
        assert history.num_replicas == 2
        return zooid.scaling.Wanted(batch_size=2 * history.batch_size, num_replicas=4)
    return None

"""


def test_a_policy_of_the_user_learns_of_evaluations_and_may_want_replicas(
    forking: RecordingPlatform, tmp_path: Path
) -> None:
    own = {**SCHEDULED, "scaling": "decide", "evaluation": "build_data", "epochs": "3"}
    job_file = write_job(tmp_path / "job.py", extra=OWN_POLICY, fields=own)
    reference = train_composed_layers(job_file, batches=(BatchPiece(first_step=8, batch_size=40),))
    url, events = (tmp_path / "run").as_uri(), list[Event]()
    plan = plan_by_hand(job_file, num_replicas=2, cuts=(), transport="tcp")
    result = zooid.train(job_file, store=url, plan=plan, on_event=events.append, platform=forking)
    assert reference.loss_difference(result.losses) <= TOLERANCE
    assert reference.weight_difference(url) <= TOLERANCE
    [wanted] = [event for event in events if isinstance(event, ScalingWanted)]
    assert (wanted.step, wanted.batch_size, wanted.rate_factor, wanted.num_replicas) == (8, 40, None, 4)


SLOW = """
import time


def slow(event):
    time.sleep(0.03)

"""


@pytest.mark.parametrize("cuts", [(), (2,)], ids=["one stage", "two stages"])
def test_adabatch_lets_a_second_replica_join(forking: RecordingPlatform, tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """The run begins with one replica. The guests learn batch size and learning rate from those that train."""
    own = {
        **SCHEDULED,
        "epochs": "9",
        "on_event": "slow",
        "scaling": "zooid.scaling.adabatch(every=2, max_batch=40, per_replica=20)",
    }
    job_file = write_job(tmp_path / "job.py", extra=SLOW, fields=own)
    batches = tuple(
        BatchPiece(first_step=step, batch_size=40, rate_factor=0.75 * 0.375**number)
        for number, step in enumerate((16, 24, 32, 40))
    )
    reference = train_composed_layers(job_file, batches=batches)
    url, events = (tmp_path / "run").as_uri(), list[Event]()
    plan = plan_by_hand(job_file, cuts=cuts, transport="tcp")
    result = zooid.train(job_file, store=url, plan=plan, on_event=events.append, platform=forking)
    assert reference.loss_difference(result.losses) <= TOLERANCE
    assert reference.weight_difference(url) <= TOLERANCE
    changed = [event for event in events if isinstance(event, RosterChanged)]
    num_stages = 1 + len(cuts)
    assert [len(event.members) for event in changed] == [2 * num_stages] * 2, "guests for a step, then a replica"
    assert changed[0].step >= 15, "they are guests in the last step of the epoch before, if they are ready by then"
    assert changed[1].step >= 16, "nobody has a seat before the batch is doubled"
    assert [event.ruling for event in changed] == ["planned"] * 2
    told = [event for event in events if isinstance(event, BatchChanged)]
    assert tuple((event.step, event.batch_size, event.rate_factor) for event in told) == tuple(
        (piece.first_step, piece.batch_size, piece.rate_factor) for piece in batches
    )
    assert len(result.losses) == told[-1].num_steps == 2 * 8 + 7 * 4
    assert timeline(url).step == 2 * 8 + 7 * 4 - 2, "the last step with a full batch of the new size"
    store = open_store(url)
    assert read_manifest(store, last_step(store)).ledger.batches == batches


def test_a_policy_that_wants_too_much_ends_the_run_and_says_so(forking: RecordingPlatform, tmp_path: Path) -> None:
    own = {**SCHEDULED, "scaling": "lambda history: zooid.scaling.Wanted(batch_size=151)"}
    job_file = write_job(tmp_path / "job.py", fields=own)
    plan = plan_by_hand(job_file, cuts=(), transport="tcp")
    with pytest.raises(MemberFailed, match="wants batches of 151 samples from step 8 on, but an epoch has only 150"):
        zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking)


MEASURED = {
    "batch_size": "24",
    "epochs": "5",
    "optimizer": "lambda named: torch.optim.SGD(named, lr=0.05)",
    "scaling": "zooid.scaling.Policy(decide, measures_noise=True, max_batch=96)",
}
SAME_REPLICAS = """
from dataclasses import replace

policy = zooid.scaling.noise_scale(max_batch=96)


def decide(history):
    return replace(policy.ask(history), num_replicas=None)

"""


@pytest.mark.parametrize(("num_replicas", "cuts"), [(2, (2,)), (4, ())], ids=["2x2", "4x1"])
def test_the_gradient_noise_scale_is_that_of_a_plain_loop(
    forking: RecordingPlatform, tmp_path: Path, num_replicas: int, cuts: tuple[int, ...]
) -> None:
    """In batches of four grains, a replica measures its first grain, be it the first of several or its only one."""
    job_file = write_job(tmp_path / "job.py", num_samples=144, dropout=0.0, extra=SAME_REPLICAS, fields=MEASURED)
    url, events = (tmp_path / "run").as_uri(), list[Event]()
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=cuts, transport="tcp")
    zooid.train(job_file, store=url, plan=plan, on_event=events.append, platform=forking)
    store = open_store(url)
    ledger = read_manifest(store, last_step(store)).ledger
    expected = plain_noise(job_file, ledger.batches, num_replicas)
    assert ledger.noise.num_steps == expected.num_steps == sum(isinstance(event, StepCommitted) for event in events)
    assert ledger.noise.trace == pytest.approx(expected.trace, rel=1e-9)
    assert ledger.noise.square_norm == pytest.approx(expected.square_norm, rel=1e-9, abs=1e-12)
    wanted = [event for event in events if isinstance(event, ScalingWanted)]
    assert [piece.batch_size for piece in ledger.batches] == [48, 96], "random labels are nothing but noise"
    assert [(event.step, event.batch_size) for event in wanted] == [
        (piece.first_step, piece.batch_size) for piece in ledger.batches
    ], "whatever it wants is done"


def plain_noise(job_file: Path, batches: tuple[BatchPiece, ...], num_replicas: int) -> NoiseEstimate:
    """The noise by gradients of whole steps and of first grains, each by a backward of its own."""
    job = load_job(job_file)
    data, model = check_data(job), build_model(job)
    samples = SamplePlan.of(job, len(data), 6)
    samples.follow(batches)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    estimate = NoiseEstimate()

    def gradients(indices: list[int]) -> list[torch.Tensor]:
        batch = collate(data, indices, job)
        loss = F.cross_entropy(model(*batch.args), batch.target)
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        return [torch.zeros_like(own) if each is None else each for own, each in zip(trained, found, strict=True)]

    for step in range(samples.num_steps):
        grains = [grain.tolist() for grain in samples.grains(step)]
        shares = split_grains(len(grains), (1,) * num_replicas)
        firsts = [grains[own[0]] for own in shares if own]
        whole = gradients([index for grain in grains for index in grain])
        if len(grains) > 1:
            squares = [sum(float(each.square().sum()) for each in gradients(first)) for first in firsts]
            square = sum(float(each.square().sum()) for each in whole)
            sizes = [len(first) for first in firsts]
            estimate = estimate.after(sum(squares) / len(squares), sizes, square, samples.step_size(step))
        factor = next((piece.rate_factor for piece in reversed(batches) if piece.first_step <= step), 1.0)
        with torch.no_grad():
            for parameter, gradient in zip(trained, whole, strict=True):
                parameter.sub_(0.05 * factor * gradient)
    return estimate
