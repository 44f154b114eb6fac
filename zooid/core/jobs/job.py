"""The job that a user defines in a Python file: a model, a loss, data, an optimizer and a batch size."""

import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

from zooid.core.errors import JobError, ZooidError
from zooid.core.jobs.run_requests import LOSS, Monitor, Wish
from zooid.core.jobs.scaling import Decide, Policy, policy_of

AutocastName = Literal["bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training job. Its parts are functions, so that each member builds only what it needs."""

    model: Callable[[], Any]
    """() -> nn.Module, any nn.Module."""
    loss: Callable[[Any, Any], Any] | None
    """(output, target) -> mean or sum over the samples or labels, or (sum, weight); None if the model's output has
    `.loss`."""
    data: Callable[[], Any]
    """() -> data set of (inputs, target), of dicts or of tensors; map-style where possible, else iterable."""
    optimizer: Callable[[Any], Any]
    """Named parameters -> torch optimizer."""
    batch_size: int
    """Number of samples in one step, over all members."""
    epochs: int
    grain_size: int | None = None
    """Number of samples in one microbatch; None lets the planner choose."""
    seed: int = 0
    """Seed of the initial weights, the order of samples, and dropout."""
    scheduler: Callable[[Any], Any] | None = None
    """Optimizer -> torch learning-rate scheduler, stepped after every step; ReduceLROnPlateau after an evaluation."""
    clip_norm: float | None = None
    """Maximum norm of the whole model's gradients; larger ones are scaled down."""
    autocast: AutocastName | None = None
    """Type for torch.autocast in the forward. With `fp16`, losses are scaled."""
    evaluation: Callable[[], Any] | None = None
    """() -> map-style data set to evaluate on."""
    evaluate_every: int | None = None
    """Steps between two evaluations; None evaluates after every epoch. The last step is always followed by one."""
    evaluate_first: bool = False
    """Whether to evaluate before the first step as well."""
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """Name -> (output, target) -> mean over the samples, or (sum, weight). Evaluations report them beside the loss."""
    monitor: Monitor | None = None
    """The metric that selects the best checkpoint and may stop the run early."""
    on_event: Callable[[Any], Wish | None] | None = None
    """Called by the first member with every StepCommitted and Evaluated event; may return a `zooid.Wish`."""
    on_weights: Callable[[int, Mapping[str, Any]], None] | None = None
    """Called by every member after each applied step: (steps so far, its stage's part of the state dict)."""
    collate: Callable[[list[Any]], Any] | None = None
    """List of samples -> batch, in one of the forms of a sample; None stacks samples as a DataLoader does."""
    num_samples: int | None = None
    """Number of samples in an epoch, for an iterable data set without a length."""
    data_workers: int = 0
    """Number of processes with which each member prefetches samples; 0 reads them when they are needed."""
    whole: bool = False
    """Whether to train the model as one stage by its own code, although it could be cut."""
    scaling: Policy | Decide | None = None
    """(history) -> `zooid.scaling.Wanted`, or a policy of `zooid.scaling`; None keeps batch size and learning rate."""

    def __post_init__(self) -> None:
        for name, is_required, form in (
            ("model", True, "() -> nn.Module"),
            ("data", True, "() -> Dataset"),
            ("optimizer", True, "(named parameters) -> torch.optim.Optimizer"),
            ("loss", False, "(output, target) -> mean loss, or None if the model's output has .loss"),
            ("scheduler", False, "(optimizer) -> torch.optim.lr_scheduler.LRScheduler"),
            ("evaluation", False, "() -> Dataset"),
            ("on_event", False, "(event) -> zooid.Wish or None"),
            ("on_weights", False, "(steps so far, named tensors) -> None"),
            ("collate", False, "(list of samples) -> batch"),
        ):
            value = getattr(self, name)
            if not callable(value) and (is_required or value is not None):
                raise JobError(f"job.{name} is {value!r}; it must be a callable: {form}")
        if hasattr(self.model, "named_parameters") and not isinstance(self.model, type):
            raise JobError(already_built(type(self.model).__name__))
        for name in ("batch_size", "epochs"):
            _check_count(name, getattr(self, name))
        for name in ("num_samples", "grain_size"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if self.grain_size is not None and self.grain_size > self.batch_size:
            raise JobError(
                f"job.grain_size is {self.grain_size}, above job.batch_size {self.batch_size}; "
                "a grain is a part of a batch: give at most the batch size"
            )
        _check_evaluation(self)
        _check_scaling(self)
        is_number = isinstance(self.clip_norm, int | float) and not isinstance(self.clip_norm, bool)
        if self.clip_norm is not None and not (is_number and 0 < self.clip_norm < math.inf):
            raise JobError(f"job.clip_norm is {self.clip_norm!r}; it must be a number above 0, or None")
        if self.autocast is not None and self.autocast not in get_args(AutocastName):
            raise JobError(f"job.autocast is {self.autocast!r}; give 'bf16', 'fp16' or None")
        if not _is_whole(self.data_workers) or self.data_workers < 0:
            raise JobError(f"job.data_workers is {self.data_workers!r}; it must be a whole number of at least 0")
        if not isinstance(self.whole, bool):
            raise JobError(f"job.whole is {self.whole!r}; give True to train the model by its own code, or False")
        if not _is_whole(self.seed):
            raise JobError(f"job.seed is {self.seed!r}; it must be a whole number")

    @property
    def policy(self) -> Policy | None:
        """The policy that changes batch size and learning rate; None if the job has none."""
        return policy_of(self.scaling)


_loading: list[Path] = []
"""Job files that are being executed, the innermost last."""


def loading_file() -> Path | None:
    """Return the job file that is being executed, if any; it must not start another run."""
    return _loading[-1] if _loading else None


def load_job(path: str | Path, variable: str = "job") -> Job:
    """Execute a job file and return its `job`, or the job in another variable."""
    file = Path(path).resolve()
    if not file.is_file():
        raise no_file(path)
    name = f"zooid_job_{file.stem}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    if module_spec is None or module_spec.loader is None:
        raise not_python(path)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    _loading.append(file)
    try:
        module_spec.loader.exec_module(module)
    except ZooidError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f"{path}, line {lines[-1]}," if lines else str(path)
        raise JobError(f"{where} fails when it is run: {type(error).__name__}: {error}") from error
    finally:
        _loading.pop()
    job = getattr(module, variable, None)
    if not isinstance(job, Job):
        defined = f"no `{variable}`" if job is None else f"a `{variable}` that is a {type(job).__name__}"
        raise no_job(path, defined)
    return job


def no_file(path: str | Path) -> JobError:
    """Return the error for a job file that does not exist."""
    return JobError(f"there is no job file {path}; give the path of a Python file that defines `job = zooid.Job(…)`")


def not_python(path: str | Path) -> JobError:
    """Return the error for a job file that is not Python."""
    return JobError(f"{path} is not a Python file; a job file ends in .py and defines `job = zooid.Job(…)`")


def no_job(path: str | Path, defined: str) -> JobError:
    """Return the error for a job file that does not define a job; `defined` says what it defines instead."""
    return JobError(f"{path} defines {defined}; define `job = zooid.Job(model=…, loss=…, data=…, …)` at its top level")


def already_built(kind: str) -> str:
    """Return the message for a model that is given instead of a function that builds it."""
    return (
        f"job.model is a {kind} that is already built; give a function that builds it, because every member builds its "
        f"own: model=lambda: {kind}(…)"
    )


def _check_evaluation(job: Job) -> None:
    metrics: object = job.metrics
    if not isinstance(metrics, Mapping) or not all(isinstance(key, str) and callable(f) for key, f in metrics.items()):
        raise JobError(f"job.metrics is {metrics!r}; give a dict of names and functions (output, target) -> mean")
    if LOSS in metrics:
        raise JobError("job.metrics has the name 'loss', which every evaluation reports anyway; give another name")
    if job.evaluate_every is not None:
        _check_count("evaluate_every", job.evaluate_every)
    if not isinstance(job.evaluate_first, bool):
        raise JobError(f"job.evaluate_first is {job.evaluate_first!r}; give True or False")
    monitor: object = job.monitor
    if monitor is not None and not isinstance(monitor, Monitor):
        raise JobError(f"job.monitor is {monitor!r}; give zooid.Monitor(metric=…, mode=…, patience=…), or None")
    for name in ("metrics", "evaluate_every", "evaluate_first", "monitor"):
        if getattr(job, name) and job.evaluation is None:
            raise JobError(f"job.{name} is given without job.evaluation; give the data set to evaluate on as well")
    if monitor is not None and monitor.metric not in (LOSS, *metrics):
        allowed = ", ".join(map(repr, (LOSS, *metrics)))
        raise JobError(f"job.monitor looks at {monitor.metric!r}, which no evaluation reports; give one of {allowed}")


def _check_scaling(job: Job) -> None:
    scaling: object = job.scaling
    if scaling is not None and not callable(scaling) and not isinstance(scaling, Policy):
        raise JobError(
            f"job.scaling is {scaling!r}; give a policy such as zooid.scaling.adabatch(every=5, max_batch=1024), or a "
            "function (history) -> zooid.scaling.Wanted"
        )
    policy = job.policy  # rejects a function that does not take the history
    if policy is not None and policy.max_batch is not None and policy.max_batch < job.batch_size:
        raise JobError(
            f"job.scaling allows batches of at most {policy.max_batch} samples, but job.batch_size is "
            f"{job.batch_size}; the run begins with that: allow at least {job.batch_size}"
        )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_count(name: str, value: object) -> None:
    if not _is_whole(value) or value < 1:
        raise JobError(f"job.{name} is {value!r}; it must be a whole number of at least 1")
