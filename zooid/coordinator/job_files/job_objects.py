"""Job files for jobs that are given as Python objects: their script, their module, or notebook cells."""

import atexit
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from zooid.coordinator.job_files.notebook_cells import statements_for
from zooid.core.errors import JobError, ObjectNotFound
from zooid.core.jobs.job import Job, loading_file, no_file
from zooid.core.jobs.job_source import check_source
from zooid.core.runs import keys
from zooid.store import ObjectStore

_HOW_TO_FIX = "assign it to a variable at the top level of a file or notebook cell, or give the path of a job file"


@dataclass(frozen=True)
class JobCode:
    """The code of a job: a folder, and perhaps a file beside it that was written for a job without one."""

    root: Path
    file: str
    """Path of the job file below the root."""
    extra: Mapping[str, bytes] = field(default_factory=dict)


_written: dict[Path, JobCode] = {}
"""Job files that this process has written, and deletes when it ends, with the code that they need elsewhere."""


def reject_nested_run() -> None:
    """Reject a run that a job file starts while a member executes it; each member would start another run."""
    if (file := loading_file()) is not None:
        raise JobError(
            f"{file} starts a run when a member executes it to build its job; put that call under "
            'if __name__ == "__main__":, or into a notebook cell of its own'
        )


def check_job_file(job_file: Job | str | Path) -> Path:
    """Return the full path of the job file, and reject one that is certain to fail.

    The first member, which can import torch, finds all other errors.
    """
    reject_nested_run()
    if isinstance(job_file, Job):
        return file_of(job_file)
    file = Path(job_file).resolve()
    if not file.is_file():
        raise no_file(job_file)
    check_source(file, str(job_file))
    return file


def file_of(job: Job) -> Path:
    """Return the file that defines the job as `job`; if there is none, write one."""
    module, variable = _find(job)
    name = getattr(module.__spec__, "name", "") if module.__name__ == "__main__" else module.__name__
    file = getattr(module, "__file__", None)
    cells = vars(module).get("In") if module.__name__ == "__main__" else None
    if isinstance(cells, list) and (text := statements_for(variable, cells[1:], vars(module))) is not None:
        text = text if variable == "job" else f"{text}job = {variable}\n"
        return _write("notebook", text, Path.cwd(), text)
    if file is None or not Path(file).is_file():
        raise JobError(f"the job in `{variable}` was typed where members cannot read it; {_HOW_TO_FIX}")
    path = Path(file).resolve()
    if "." in name:
        root = path.parents[name.count(".") + (path.name == "__init__.py")]
        texts = [_import_source(name, folder, variable) for folder in (str(root), ".")]
        return _write(variable, texts[0], root, texts[1])
    if variable == "job":
        return path
    texts = [_load_source(file, variable) for file in (str(path), path.name)]
    return _write(variable, texts[0], path.parent, texts[1])


def code_of(file: Path) -> JobCode:
    """Return the code that a job file needs on another machine."""
    return _written.get(file) or JobCode(file.parent, file.name)


def save_source(store: ObjectStore, file: Path) -> None:
    """Copy a job file that this process has written into the run's folder, so that the run can be resumed later."""
    if file in _written:
        store.put(keys.JOB, file.read_bytes())


def saved_source(store: ObjectStore) -> Path | None:
    """Fetch the job file that was saved in a run's folder; None if there is none."""
    try:
        text = bytes(store.get(keys.JOB)).decode()
        return _write("job", text, Path.cwd(), text)
    except ObjectNotFound:
        return None
    except UnicodeDecodeError as error:
        raise JobError(f"{store.url}/{keys.JOB} is not Python: {error}; give the job file with --job") from error


def _find(job: Job) -> tuple[ModuleType, str]:
    """Find the module and the variable that hold the job.

    An importable module comes before `__main__`, which may only have imported the job from it.
    """
    holders = [
        (module, variable)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and (module.__name__ == "__main__" or getattr(module, "__file__", None))
        for variable, value in list(vars(module).items())
        if value is job and not variable.startswith("_")
    ]
    if not holders:
        raise JobError(f"the given job is in no variable in which members can find it; {_HOW_TO_FIX}")
    return min(holders, key=lambda holder: holder[0].__name__ == "__main__")


def _import_source(name: str, root: str, variable: str) -> str:
    """Return a job file that imports the job from a package, whose own imports may be relative."""
    return f"import sys\n\nsys.path.insert(0, {root!r})\nfrom {name} import {variable} as job\n"


def _load_source(file: str, variable: str) -> str:
    """Return a job file that loads the job from a variable of another file."""
    return f"from zooid.core.jobs.job import load_job\n\njob = load_job({file!r}, {variable!r})\n"


def _write(stem: str, text: str, root: Path, text_elsewhere: str) -> Path:
    """Write a job file; elsewhere, it stands beside the contents of `root` with another text."""
    folder = Path(tempfile.mkdtemp(prefix="zooid-job-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{stem}.py"
    file.write_text(text)
    name = f"zooid_{stem}.py"
    _written[file] = JobCode(root, name, {name: text_elsewhere.encode()})
    return file
