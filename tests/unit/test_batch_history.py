"""Batch sizes that change during a run: samples, steps and epochs follow them exactly."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zooid.core.errors import RecordError
from zooid.core.records import decode_record, encode_record
from zooid.core.runs.batch_history import BatchPiece
from zooid.core.runs.checkpoint import CheckpointManifest, Ledger, SampleFacts
from zooid.schedule.samples import SamplePlan, samples_of

quick = settings(deadline=None, max_examples=100)


@dataclass(frozen=True)
class PlainStep:
    epoch: int
    num_before: int
    indices: list[int]


def plain_loop(plan: SamplePlan) -> list[PlainStep]:
    """The steps as a person would write them: walk through each epoch, with the batch size of the present step."""
    sizes = {piece.first_step: piece.batch_size for piece in plan.batches}
    steps: list[PlainStep] = []
    batch_size = plan.batch_size
    for epoch in range(plan.epochs):
        order = plan.order(epoch).tolist()
        while order:
            batch_size = sizes.get(len(steps), batch_size)
            batch, order = order[:batch_size], order[batch_size:]
            num_before = epoch * plan.num_samples + plan.num_samples - len(order) - len(batch)
            steps.append(PlainStep(epoch, num_before, batch))
    return steps


@st.composite
def plans(draw: st.DrawFn) -> SamplePlan:
    num_samples = draw(st.integers(1, 60))
    batch_size = draw(st.integers(1, num_samples))
    steps = draw(st.lists(st.integers(1, 80), unique=True, max_size=5).map(sorted))
    return SamplePlan(
        num_samples=num_samples,
        batch_size=batch_size,
        grain_size=draw(st.integers(1, 9)),
        epochs=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 9)),
        is_in_order=draw(st.booleans()),
        batches=tuple(BatchPiece(first_step=step, batch_size=draw(st.integers(1, 70))) for step in steps),
    )


@quick
@given(plans())
def test_every_history_gives_the_steps_of_a_plain_loop(plan: SamplePlan) -> None:
    steps = plain_loop(plan)
    assert plan.num_steps == len(steps)
    for number, step in enumerate(steps):
        assert plan.epoch_of(number) == step.epoch
        assert plan.num_samples_before(number) == step.num_before
        assert plan.step_size(number) == len(step.indices)
        grains = plan.grains(number)
        assert np.concatenate(grains).tolist() == step.indices
        assert [len(grain) for grain in grains[:-1]] == [plan.grain_size] * (len(grains) - 1)
        assert plan.num_grains(number) == len(grains) <= plan.max_grains
        is_end = number + 1 == len(steps) or steps[number + 1].epoch > step.epoch
        assert plan.ends_epoch(number + 1) == is_end
    assert plan.num_samples_before(plan.num_steps) == plan.epochs * plan.num_samples


@quick
@given(plans())
def test_every_sample_counts_once_per_epoch_whatever_the_batch_sizes(plan: SamplePlan) -> None:
    read: dict[int, list[int]] = {epoch: [] for epoch in range(plan.epochs)}
    for step in range(plan.num_steps):
        read[plan.epoch_of(step)] += np.concatenate(plan.grains(step)).tolist()
    for epoch, indices in read.items():
        first = epoch * plan.num_samples if plan.is_in_order else 0
        assert sorted(indices) == list(range(first, first + plan.num_samples))


@quick
@given(plans(), st.integers(1, 40), st.integers(1, 70))
def test_a_change_leaves_the_steps_before_it_as_they_were(plan: SamplePlan, after: int, batch_size: int) -> None:
    step = max([after, *(piece.first_step + 1 for piece in plan.batches)])
    before = [np.concatenate(plan.grains(number)).tolist() for number in range(min(step, plan.num_steps))]
    plan.follow((*plan.batches, BatchPiece(first_step=step, batch_size=batch_size)))
    assert [np.concatenate(plan.grains(number)).tolist() for number in range(len(before))] == before


def a_manifest(**ledger: object) -> CheckpointManifest:
    return CheckpointManifest(
        step=3,
        model_fingerprint="f",
        samples=SampleFacts(num_samples=20, batch_size=4, grain_size=2, epochs=2, seed=0),
        optimizer_class="SGD",
        shards=(),
        constants=(),
        aliases={},
        ledger=Ledger(**ledger),  # type: ignore[arg-type]
    )


def test_a_checkpoint_keeps_the_history() -> None:
    pieces = (BatchPiece(first_step=3, batch_size=8, rate_factor=0.5),)
    read = decode_record(encode_record(a_manifest(batches=pieces)), CheckpointManifest, "manifest")
    assert read.ledger.batches == pieces
    assert samples_of(read).num_steps == 3 + 1 + 3, "4 + 4 + 4 + 8 samples, then 8 + 8 + 4"


def test_a_checkpoint_without_a_history_has_the_jobs_batches() -> None:
    text = encode_record(a_manifest()).replace(b'"batches": []', b'"stopped": ""').replace(b'"stopped": "",\n', b"", 1)
    read = decode_record(text, CheckpointManifest, "manifest")
    assert b"batches" not in text
    assert samples_of(read).num_steps == 10


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([{"first_step": 4, "batch_size": 0}], "`batch_size` is 0; it must be at least 1"),
        ([{"first_step": 4, "batch_size": 8, "rate_factor": 0.0}], "it must be a finite number above 0"),
        ([{"first_step": 4, "batch_size": 8}, {"first_step": 4, "batch_size": 9}], "give them in order"),
        ([{"first_step": 0, "batch_size": 8}], "a piece from step 0 on after step 0"),
    ],
)
def test_a_history_that_cannot_be_is_rejected(pieces: list[dict[str, float]], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        a_manifest(batches=tuple(BatchPiece(**piece) for piece in pieces))  # type: ignore[arg-type]
