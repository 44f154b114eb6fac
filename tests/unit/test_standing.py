"""How a run stands by its evaluations, also when it goes on from what a checkpoint remembers."""

import math
from typing import Any

from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import NO_WISH, Monitor, Wish
from zooid.core.records import decode_record, encode_record
from zooid.core.runs.checkpoint import CheckpointManifest, Ledger, SampleFacts
from zooid.core.runs.events import Evaluated
from zooid.core.runs.stop_request import STOPPED_BY_REQUEST
from zooid.worker.member.evaluation_history import EvaluationHistory


def a_job(monitor: Monitor | None) -> Job:
    nothing: Any = list
    return Job(
        model=nothing,
        loss=None,
        data=nothing,
        optimizer=nothing,
        batch_size=8,
        epochs=2,
        evaluation=nothing,
        metrics={"accuracy": max},
        monitor=monitor,
    )


def evaluated(step: int, loss: float, accuracy: float = 0.0) -> Evaluated:
    return Evaluated(at_s=0.0, epoch=0, step=step, loss=loss, metrics={"accuracy": accuracy}, num_samples=1, wall_s=0.0)


def test_patience_counts_evaluations_in_a_row() -> None:
    standing = EvaluationHistory(a_job(Monitor(patience=2)), Ledger())
    losses = [3.0, 2.0, 2.5, 1.0, 1.0, 4.0]
    wishes = [standing.add(evaluated(step, loss)) for step, loss in enumerate(losses)]
    better, nothing = Wish.KEEP_BEST, NO_WISH
    assert wishes == [better, better, nothing, better, nothing, Wish.STOP]


def test_numbers_that_are_not_finite_count_as_no_better_and_survive_a_checkpoint() -> None:
    job = a_job(Monitor(metric="accuracy", mode="max", patience=2))
    first = EvaluationHistory(job, Ledger())
    assert first.add(evaluated(1, math.inf, math.nan)) == NO_WISH
    manifest = CheckpointManifest(
        step=1,
        model_fingerprint="f",
        samples=SampleFacts(num_samples=1, batch_size=1, grain_size=1, epochs=1, seed=0),
        optimizer_class="SGD",
        shards=(),
        constants=(),
        aliases={},
        ledger=first.ledger,
    )
    read = decode_record(encode_record(manifest), CheckpointManifest, "manifest").ledger
    assert math.isnan(read.evaluations[0].value("accuracy"))
    assert read.evaluations[0].value("loss") == math.inf
    second = EvaluationHistory(job, read)
    assert second.add(evaluated(2, 1.0, -math.inf)) == Wish.STOP
    second.fulfil(Wish.STOP, 2, may_stop=True)
    assert second.ledger.stopped == "accuracy has not been finite in 2 evaluations (job.monitor)"


def test_a_run_that_goes_on_has_not_stopped_and_remembers_the_best() -> None:
    before = EvaluationHistory(a_job(Monitor(patience=1)), Ledger())
    for step, loss in ((1, 2.0), (2, 3.0)):
        before.fulfil(before.add(evaluated(step, loss)), step, may_stop=True)
    assert before.ledger.stopped
    after = EvaluationHistory(a_job(Monitor(patience=3)), before.ledger)
    assert (after.ledger.stopped, after.ledger.best_step) == ("", 1)
    assert after.add(evaluated(3, 2.5)) == NO_WISH
    assert after.add(evaluated(4, 2.5)) == Wish.STOP


def test_a_run_that_a_person_stops_is_complete_only_if_its_job_wishes_to_stop_as_well() -> None:
    by_person, by_both, at_the_end = (EvaluationHistory(a_job(None), Ledger()) for _ in range(3))
    by_person.fulfil(Wish.KEEP_BEST, 3, may_stop=True, stop_reason=STOPPED_BY_REQUEST)
    by_both.fulfil(Wish.STOP, 3, may_stop=True, stop_reason=STOPPED_BY_REQUEST)
    at_the_end.fulfil(NO_WISH, 9, may_stop=False, stop_reason=STOPPED_BY_REQUEST)
    assert by_person.ledger == Ledger(stopped=STOPPED_BY_REQUEST, by_request=True, best_step=3)
    assert not by_person.ledger.is_complete_early
    assert by_both.ledger.is_complete_early
    assert at_the_end.ledger == Ledger()
    assert EvaluationHistory(a_job(None), by_person.ledger).ledger == Ledger(best_step=3), "it goes on"


def test_a_metric_that_was_not_evaluated_before_has_no_past() -> None:
    before = EvaluationHistory(a_job(None), Ledger())
    assert before.add(evaluated(1, 2.0)) == NO_WISH
    ledger = before.ledger
    del ledger.evaluations[0].numbers["accuracy"]
    after = EvaluationHistory(a_job(Monitor(metric="accuracy", mode="max")), ledger)
    assert after.values == []
    assert after.add(evaluated(2, 2.0, 0.1)) == Wish.KEEP_BEST
