"""The evaluations of a run so far: which checkpoint is the best, and whether to stop early."""

from msgspec import structs

from zooid.core.jobs.job import Job
from zooid.core.jobs.run_requests import LOSS, NO_WISH, Wish
from zooid.core.runs.checkpoint import Evaluation, Ledger
from zooid.core.runs.events import Evaluated, json_ready
from zooid.schedule.samples import SamplePlan

_STOPPED_BY_CALLBACK = "job.on_event wished so"


def is_evaluation_due(job: Job, samples: SamplePlan, num_steps: int) -> bool:
    """Whether the job is evaluated after so many steps."""
    if job.evaluation is None:
        return False
    is_due = num_steps % job.evaluate_every == 0 if job.evaluate_every else samples.ends_epoch(num_steps)
    return is_due or num_steps == samples.num_steps


class EvaluationHistory:
    """The ledger of a run, and the wishes of its monitor. All members see the same numbers, and so wish the same."""

    def __init__(self, job: Job, ledger: Ledger) -> None:
        self._monitor = job.monitor
        self._metric = LOSS if job.monitor is None else job.monitor.metric
        self.ledger = structs.replace(ledger, stopped="", by_request=False)  # a run that goes on has not stopped
        self._stop_reason = _STOPPED_BY_CALLBACK
        self._last: Evaluated | None = None

    @property
    def values(self) -> list[float]:
        """The monitored number of every evaluation that has it. A job that changed since may not have had it."""
        return [value for _, value in self._steps_and_values()]

    def known(self, step: int) -> Evaluated | None:
        """The evaluation after so many steps, if this member has made it."""
        return self._last if self._last is not None and self._last.step == step else None

    def add(self, event: Evaluated) -> Wish:
        """Enter an evaluation, unless it is known, and return the wish of the job's monitor."""
        if self.known(event.step) is None:
            self._last = event
            numbers = json_ready({LOSS: event.loss, **event.metrics})
            evaluation = Evaluation(step=event.step, numbers=numbers)
            self.ledger = structs.replace(self.ledger, evaluations=(*self.ledger.evaluations, evaluation))
        return self._judge()

    def fulfil(self, wishes: Wish, step: int, *, may_stop: bool, stop_reason: str = "") -> None:
        """Note the best checkpoint, and the reason to stop. If the job wishes to stop, the run is complete.

        `stop_reason` is a reason from outside the job, after which the run can be resumed.
        """
        if Wish.KEEP_BEST in wishes:
            self.ledger = structs.replace(self.ledger, best_step=step)
        if Wish.STOP in wishes and may_stop:
            self.ledger = structs.replace(self.ledger, stopped=self._stop_reason)
        elif stop_reason and may_stop:
            self.ledger = structs.replace(self.ledger, stopped=stop_reason, by_request=True)

    def _judge(self) -> Wish:
        if self._monitor is None:
            return NO_WISH
        best, best_step, num_since = None, 0, 0
        for step, value in self._steps_and_values():
            num_since += 1
            if self._monitor.is_better(value, best):
                best, best_step, num_since = value, step, 0
        if best is not None and num_since == 0:
            return Wish.KEEP_BEST
        if self._monitor.patience is None or num_since < self._monitor.patience:
            return NO_WISH
        missed = "finite" if best is None else f"better than {best:g}, that of step {best_step},"
        self._stop_reason = f"{self._metric} has not been {missed} in {num_since} evaluations (job.monitor)"
        return Wish.STOP

    def _steps_and_values(self) -> list[tuple[int, float]]:
        return [
            (evaluation.step, evaluation.value(self._metric))
            for evaluation in self.ledger.evaluations
            if self._metric in evaluation.numbers
        ]
