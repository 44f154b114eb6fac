"""A job is refused at once, by name and with the fix, when one of its parts cannot be used."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zooid.core.errors import JobError
from zooid.core.jobs.job import Job, load_job
from zooid.core.jobs.run_requests import Monitor

JOB_FILE = """
from zooid.core.jobs.job import Job

job = Job(model=list, loss=None, data=list, optimizer=list, batch_size=8, epochs=2)
"""


@pytest.fixture(autouse=True)
def restored_imports() -> Iterator[None]:
    """Loading a job file adds its folder to the path and its modules to the process."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


class BuiltModel:
    """What tells a model apart from a function: it has parameters."""

    def __call__(self) -> None: ...

    def named_parameters(self) -> list[tuple[str, float]]:
        return []


def parts(**changed: Any) -> dict[str, Any]:
    valid = {"model": list, "loss": max, "data": list, "optimizer": list, "batch_size": 8, "epochs": 2}
    return valid | changed


def test_a_valid_job_keeps_its_parts() -> None:
    job = Job(**parts(grain_size=8, seed=7))
    assert (job.batch_size, job.epochs, job.grain_size, job.seed) == (8, 2, 8, 7)
    assert Job(**parts(loss=None)).loss is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": BuiltModel()}, r"job.model is a BuiltModel that is already built; .*: model=lambda: BuiltModel\("),
        ({"model": 3}, r"job.model is 3; it must be a callable: \(\) -> nn.Module"),
        ({"data": [1]}, r"job.data is \[1\]; it must be a callable: \(\) -> Dataset"),
        ({"optimizer": None}, r"job.optimizer is None; it must be a callable: \(named parameters\) -> torch.optim"),
        ({"loss": "mse"}, r"job.loss is 'mse'; it must be a callable: \(output, target\) -> mean loss, or None"),
        ({"batch_size": 0}, "job.batch_size is 0; it must be a whole number of at least 1"),
        ({"batch_size": 8.0}, "job.batch_size is 8.0; it must be a whole number"),
        ({"epochs": -1}, "job.epochs is -1; it must be a whole number of at least 1"),
        ({"epochs": True}, "job.epochs is True; it must be a whole number"),
        ({"grain_size": 0}, "job.grain_size is 0; it must be a whole number of at least 1"),
        ({"grain_size": 9}, "job.grain_size is 9, above job.batch_size 8; .*give at most the batch size"),
        ({"seed": "lucky"}, "job.seed is 'lucky'; it must be a whole number"),
        ({"evaluate_every": 0, "evaluation": list}, "job.evaluate_every is 0; it must be a whole number of at least 1"),
        ({"evaluate_every": 5}, "job.evaluate_every is given without job.evaluation; give the data set"),
        ({"evaluate_first": True}, "job.evaluate_first is given without job.evaluation"),
        ({"evaluate_first": 3, "evaluation": list}, "job.evaluate_first is 3; give True or False"),
        ({"monitor": Monitor()}, "job.monitor is given without job.evaluation"),
        ({"monitor": "loss", "evaluation": list}, r"job.monitor is 'loss'; give zooid.Monitor\(metric="),
        (
            {"monitor": Monitor(metric="recall"), "evaluation": list, "metrics": {"accuracy": max}},
            "job.monitor looks at 'recall', which no evaluation reports; give one of 'loss', 'accuracy'",
        ),
        ({"metrics": {"loss": max}, "evaluation": list}, "job.metrics has the name 'loss', which every evaluation"),
        ({"on_weights": 3}, r"job.on_weights is 3; it must be a callable: \(steps so far, named tensors\) -> None"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Job(**parts(**changed))


def test_a_class_of_models_is_a_function_that_builds_one() -> None:
    assert Job(**parts(model=BuiltModel)).model is BuiltModel


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": 3}, "`metric` of zooid.Monitor is 3; give 'loss' or a name"),
        ({"mode": "least"}, "`mode` of zooid.Monitor is 'least'; give 'min' or 'max'"),
        ({"min_change": -0.1}, "`min_change` of zooid.Monitor is -0.1; give a number of at least 0"),
        ({"patience": 0}, "`patience` of zooid.Monitor is 0; give a whole number of at least 1, or None"),
    ],
)
def test_a_monitor_that_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        Monitor(**given)


def test_what_is_better() -> None:
    assert Monitor().is_better(1.0, None)
    assert Monitor().is_better(0.9, 1.0)
    assert not Monitor().is_better(1.0, 1.0)
    assert not Monitor(min_change=0.2).is_better(0.9, 1.0)
    assert Monitor(mode="max").is_better(1.1, 1.0)
    assert not Monitor(mode="max").is_better(math.inf, 1.0)
    assert not Monitor().is_better(math.nan, None)


def test_a_job_cannot_be_changed_after_its_checks() -> None:
    with pytest.raises(AttributeError):
        Job(**parts()).epochs = 0  # type: ignore[misc]


def test_a_job_file_is_run_and_its_job_returned(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB_FILE)
    assert load_job(path).batch_size == 8
    assert load_job(str(path)).epochs == 2


def test_a_job_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_the_job.py").write_text("BATCH_SIZE = 32\n")
    path = tmp_path / "job.py"
    path.write_text(
        "import neighbour_of_the_job\n" + JOB_FILE.replace("batch_size=8", "batch_size=neighbour_of_the_job.BATCH_SIZE")
    )
    assert load_job(path).batch_size == 32


def test_what_a_job_file_defines_can_be_found_by_its_module(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("def build() -> list:\n    return []\n" + JOB_FILE.replace("model=list", "model=build"))
    model = load_job(path).model
    assert vars(sys.modules[model.__module__])["build"] is model


def test_a_file_loaded_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB_FILE)
    load_job(path)
    path.write_text(JOB_FILE.replace("epochs=2", "epochs=12"))
    assert load_job(path).epochs == 12


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"there is no job file .*nowhere.py; give the path of a Python file"):
        load_job(tmp_path / "nowhere.py")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no job file"):
        load_job(tmp_path)


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.txt"
    path.write_text(JOB_FILE)
    with pytest.raises(JobError, match=r"job.txt is not a Python file; a job file ends in .py"):
        load_job(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [("x = 1\n", "no `job`"), ("job = None\n", "no `job`"), ("job = {'epochs': 1}\n", "a `job` that is a dict")],
)
def test_a_file_without_a_job_is_refused(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "job.py"
    path.write_text(text)
    with pytest.raises(JobError, match=rf"job.py defines {found}; define `job = zooid.Job\(model="):
        load_job(path)


def test_an_error_of_the_user_keeps_its_own_name_and_line(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text("first = 1\nraise ZeroDivisionError('mine')\n")
    with pytest.raises(JobError, match=r"job.py, line 2, fails when it is run: ZeroDivisionError: mine") as caught:
        load_job(path)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
