"""What the user hands over: a model, a loss, data, an optimizer and a batch size, in a Python file with a `job`."""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zooid.core.errors import JobError, ZooidError


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training job. Everything is built by calling, so that each member builds only what it needs."""

    model: Callable[[], Any]
    """() -> nn.Module, any nn.Module."""
    loss: Callable[[Any, Any], Any] | None
    """(output, target) -> mean over the samples, or (sum, weight); None where the model's output carries `.loss`."""
    data: Callable[[], Any]
    """() -> map-style data set of (inputs, target), inputs a tensor, tuple or dict."""
    optimizer: Callable[[Any], Any]
    """Named parameters -> torch optimizer."""
    batch_size: int
    """Samples of one step, over all members."""
    epochs: int
    grain_size: int | None = None
    """Samples of one microbatch; None lets the planner choose."""
    seed: int = 0
    """Initial weights, the order of samples and dropout follow from it."""

    def __post_init__(self) -> None:
        for name, form in (
            ("model", "() -> nn.Module"),
            ("data", "() -> Dataset"),
            ("optimizer", "(named parameters) -> torch.optim.Optimizer"),
        ):
            _check_callable(name, getattr(self, name), form)
        if self.loss is not None:
            _check_callable("loss", self.loss, "(output, target) -> mean loss, or None if the model's output has .loss")
        for name in ("batch_size", "epochs"):
            _check_count(name, getattr(self, name))
        if self.grain_size is not None:
            _check_count("grain_size", self.grain_size)
            if self.grain_size > self.batch_size:
                raise JobError(
                    f"job.grain_size is {self.grain_size}, above job.batch_size {self.batch_size}; "
                    "a grain is a part of a batch: give at most the batch size"
                )
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise JobError(f"job.seed is {self.seed!r}; it must be a whole number")


def load_job(path: str | Path) -> Job:
    """Run a job file and return its `job`."""
    file = Path(path).resolve()
    if not file.is_file():
        raise JobError(f"there is no job file {path}; give the path of a Python file that defines `job = zooid.Job(…)`")
    name = f"zooid_job_{file.stem}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    if module_spec is None or module_spec.loader is None:
        raise JobError(f"{path} is not a Python file; a job file ends in .py and defines `job = zooid.Job(…)`")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    try:
        module_spec.loader.exec_module(module)
    except ZooidError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f"{path}, line {lines[-1]}," if lines else str(path)
        raise JobError(f"{where} fails when it is run: {type(error).__name__}: {error}") from error
    job = getattr(module, "job", None)
    if not isinstance(job, Job):
        found = "no `job`" if job is None else f"a `job` that is a {type(job).__name__}"
        raise JobError(f"{path} defines {found}; define `job = zooid.Job(model=…, loss=…, data=…, …)` at its top level")
    return job


def _check_callable(name: str, value: object, form: str) -> None:
    if not callable(value):
        raise JobError(f"job.{name} is {value!r}; it must be a callable: {form}")


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise JobError(f"job.{name} is {value!r}; it must be a whole number of at least 1")
