"""Loss and gradients of a step are those of the plain loop on its whole batch, whatever the grains and the shares."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

from zooid.core.jobs.job import Job
from zooid.core.runs.roster import Roster, RosterMember
from zooid.layers import (
    CheckedJob,
    LayeredModel,
    Objective,
    build_model,
    build_stage,
    check_job,
    collate,
    is_in_order,
    trace_job,
)
from zooid.schedule.actions import Action, Kind
from zooid.schedule.samples import SamplePlan, split_grains
from zooid.schedule.step_state import Decision, StepState, Vote
from zooid.worker.member.seat import Seat
from zooid.worker.samples.sample_supply import open_supply
from zooid.worker.state.loss_scaling import LossScale
from zooid.worker.state.training_state import TrainedStage, TrainingState
from zooid.worker.step.stage_runner import StageRunner
from zooid.worker.step.verdict import StageNumbers, StepCounts, Verdict

NUM_SAMPLES, LENGTH, NUM_TOKENS = 23, 6, 11
TOLERANCE = 1e-12
GENERATOR = torch.Generator().manual_seed(4)
FEATURES = torch.randn(NUM_SAMPLES, 5, generator=GENERATOR, dtype=torch.float64)
WISHED = torch.randn(NUM_SAMPLES, 3, generator=GENERATOR, dtype=torch.float64)
TOKENS = torch.randint(1, NUM_TOKENS, (NUM_SAMPLES, LENGTH), generator=GENERATOR)
LENGTHS = torch.randint(1, LENGTH + 1, (NUM_SAMPLES, 1), generator=GENERATOR)
LABELS = TOKENS.masked_fill(torch.arange(LENGTH) >= LENGTHS, -100)
TEXTS = [
    {"tokens": tokens[:length].tolist(), "labels": tokens[:length].tolist()}
    for tokens, (length,) in zip(TOKENS, LENGTHS.tolist(), strict=True)
]


@dataclass
class Answer:
    """What a model returns that computes its own loss."""

    loss: Tensor
    logits: Tensor


torch.export.register_dataclass(Answer)


class NextToken(nn.Module):
    """As the language models of transformers: a mean over the labels that are not -100, without the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 4)
        self.head = nn.Linear(4, NUM_TOKENS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Answer:
        logits = self.head(torch.tanh(self.embedding(tokens)))
        return Answer(F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits)


class InOrder(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples that can only be read one after the other, and in every epoch in another order."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(self._epoch))
        return ((FEATURES[index], WISHED[index]) for index in order)


def padded(samples: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    tokens = [sample["tokens"] + [0] * (LENGTH - len(sample["tokens"])) for sample in samples]
    labels = [sample["labels"] + [-100] * (LENGTH - len(sample["labels"])) for sample in samples]
    return {"tokens": torch.tensor(tokens), "labels": torch.tensor(labels)}


def regression() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def tagger() -> nn.Module:
    return nn.Sequential(nn.Embedding(NUM_TOKENS, 4), nn.Tanh(), nn.Linear(4, NUM_TOKENS)).double()


def token_mean(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def token_sum(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum"), (target != -100).sum()


def job_of(model: Callable[[], nn.Module], loss: Any, data: Callable[[], Any], **fields: Any) -> Job:
    values: dict[str, Any] = {"batch_size": 2, "epochs": 2, "num_samples": None} | fields
    return Job(model=model, loss=loss, data=data, optimizer=lambda named: torch.optim.SGD(named, lr=0.1), **values)


JOBS = {
    "mean": job_of(regression, F.mse_loss, lambda: TensorDataset(FEATURES, WISHED)),
    "sum": job_of(regression, nn.MSELoss(reduction="sum"), lambda: TensorDataset(FEATURES, WISHED)),
    "weight": job_of(tagger, token_sum, lambda: TensorDataset(TOKENS, LABELS)),
    "labels": job_of(tagger, token_mean, lambda: TensorDataset(TOKENS, LABELS)),
    "padded tokens": job_of(lambda: NextToken().double(), None, lambda: TEXTS, collate=padded),
    "iterable": job_of(regression, F.mse_loss, InOrder, num_samples=NUM_SAMPLES),
}
FORMS = ["mean", "sum", "weighted", "label_mean", "label_mean", "mean"]


@functools.cache
def prepared(name: str) -> tuple[CheckedJob, LayeredModel]:
    checked = check_job(JOBS[name])
    return checked, trace_job(checked.job, checked.example)


@pytest.mark.parametrize(("name", "form"), [*zip(JOBS, FORMS, strict=True)])
def test_the_jobs_are_of_different_forms(name: str, form: str) -> None:
    assert prepared(name)[0].loss_form.kind == form


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", JOBS)
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_step_is_the_plain_loops(name: str, data: st.DataObject) -> None:
    checked, layered = prepared(name)
    batch_size = data.draw(st.integers(1, NUM_SAMPLES), "batch size")
    grain_size = data.draw(st.integers(1, batch_size), "grain size")
    shares = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3), "shares"))
    job = replace(checked.job, batch_size=batch_size, grain_size=grain_size)
    samples = SamplePlan.of(job, NUM_SAMPLES, grain_size, is_in_order=is_in_order(checked.data))
    step = data.draw(st.integers(0, samples.num_steps - 1), "step")

    whole = collate(checked.data, [index for grain in samples.grains(step) for index in grain], job)
    loss, gradients = plain_step(job, whole)
    if loss is None:  # a step without any label, which the plain loop cannot train on either
        return
    verdict, own = step_of_replicas(replace(checked, job=job), layered, samples, step, shares)

    assert verdict.loss == pytest.approx(loss, rel=0, abs=TOLERANCE)
    for parameter, gradient in gradients.items():
        difference = own[parameter] * verdict.gradient_factor(1.0) - gradient
        assert float(difference.abs().max()) <= TOLERANCE, parameter
    if checked.loss_form.kind in ("mean", "sum"):
        assert verdict.gradient_factor(1.0) == pytest.approx(1.0, rel=1e-14), (
            "what hooks see is the gradient of the step's loss"
        )


def plain_step(job: Job, batch: Any) -> tuple[float | None, dict[str, Tensor]]:
    """The job's own model and loss on the whole batch at once."""
    model = build_model(job)
    output = model(*batch.args, **batch.kwargs)
    value = output.loss if job.loss is None else job.loss(output, batch.target)
    loss = value[0] / value[1] if isinstance(value, tuple) else value
    if not loss.isfinite():
        return None, {}
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def step_of_replicas(
    checked: CheckedJob, layered: LayeredModel, samples: SamplePlan, step: int, shares: tuple[int, ...]
) -> tuple[Verdict, dict[str, Tensor]]:
    """Each replica as a member of its own would compute it, and what their all-reduces would add up to."""
    total: list[float] = []
    gradients: dict[str, Tensor] = {}
    for replica in range(len(shares)):
        numbers, nominal_weight, own = step_of_replica(checked, layered, samples, step, shares, replica)
        # Nobody reduces here: every part votes for its own losses, as a replica that is alone does.
        vote = numbers.vote(Vote(), 0, 1, is_first_replica=True)
        total = [sum(pair) for pair in zip(total, vote.values(), strict=True)] if total else vote.values()
        for name, gradient in own.items():
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return Verdict(checked.job, step, numbers, Vote.of(total, 1), Decision.APPLY, nominal_weight), gradients


def step_of_replica(
    checked: CheckedJob, layered: LayeredModel, samples: SamplePlan, step: int, shares: tuple[int, ...], replica: int
) -> tuple[StageNumbers, float, dict[str, Tensor]]:
    job, device = checked.job, torch.device("cpu")
    state = build_model(job).state_dict(keep_vars=True)
    stage = build_stage(layered, 0, layered.num_layers, state, device)
    names = tuple(layered.trained_bytes(0, layered.num_layers))
    training = TrainingState(TrainedStage(stage.module, names, layered.persistent_names), job)
    member = RosterMember(name="r0s0", stage=0, replica=0)
    roster = Roster(run="test", number=0, resume_step=0, members=(member,), shares=(1,))
    seat = Seat(roster, 0, device)
    grains = samples.grains(step)
    numbers = split_grains(len(grains), shares)[replica]
    with open_supply(
        job, checked.data, samples, lambda _, count: split_grains(count, shares)[replica], reads=True, pin=False
    ) as reading:
        runner = StageRunner(Objective(job, checked.loss_form), reading.train, stage, training, seat, device)
        runner.begin_step(step, grains, [numbers], LossScale())
        for number in numbers:
            runner.compute(Action(0, Kind.FORWARD, number))
            runner.compute(Action(0, Kind.BACKWARD, number))
    counted = StepCounts(StepState.resumed(step), runner.count(), runner.weight, runner.nominal_weight, None, 0.0)
    own = {name: p.grad for name, p in stage.module.named_parameters() if p.grad is not None}
    return counted.read(1.0), runner.nominal_weight, own
