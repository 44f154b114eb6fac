"""A file from which members build a job that was given as an object: its script, its module, or notebook cells."""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from zooid.coordinator.job_files.notebook_cells import statements_for
from zooid.core.errors import JobError, ObjectNotFound
from zooid.core.jobs.job import Job, loading_file
from zooid.core.jobs.job_source import check_source
from zooid.core.runs import keys
from zooid.store import ObjectStore

_HOW = "assign it to a variable at the top level of a file or of a notebook cell, or give the path of a job file"
_made: set[Path] = set()
"""Files that were written here, and last as long as this process."""


def refuse_while_loading() -> None:
    """A job file that starts a run when it is run would start another one in each of its members."""
    if (file := loading_file()) is not None:
        raise JobError(
            f"{file} starts a run when a member runs it to build its job; put that call under "
            'if __name__ == "__main__":, or into a notebook cell of its own'
        )


def check_job_file(job_file: Job | str | Path) -> Path:
    """The file's full path. What is wrong with it for certain is refused here; the first member, which can import
    torch, finds the rest."""
    refuse_while_loading()
    if isinstance(job_file, Job):
        return file_of(job_file)
    file = Path(job_file).resolve()
    if not file.is_file():
        raise JobError(
            f"there is no job file {job_file}; give the path of a Python file that defines `job = zooid.Job(…)`"
        )
    check_source(file, str(job_file))
    return file


def file_of(job: Job) -> Path:
    """The file in which the job is `job`, or one that is written for it."""
    module, variable = _find(job)
    name = getattr(module.__spec__, "name", "") if module.__name__ == "__main__" else module.__name__
    file = getattr(module, "__file__", None)
    cells = vars(module).get("In") if module.__name__ == "__main__" else None
    if isinstance(cells, list) and (text := statements_for(variable, cells[1:], vars(module))) is not None:
        return _make("notebook", text if variable == "job" else f"{text}job = {variable}\n")
    if file is None or not Path(file).is_file():
        raise JobError(f"the job in `{variable}` was typed where members cannot read it; {_HOW}")
    path = Path(file).resolve()
    if "." in name:
        return _make(variable, _importing(name, path, variable))
    if variable == "job":
        return path
    return _make(variable, f"from zooid.core.jobs.job import load_job\n\njob = load_job({str(path)!r}, {variable!r})\n")


def keep_source(store: ObjectStore, file: Path) -> None:
    """Put a file that was written for a job into its run's folder, so that the run can go on when this process ends."""
    if file in _made:
        store.put(keys.JOB, file.read_bytes())


def kept_source(store: ObjectStore) -> Path | None:
    """The file that was kept in a run's folder, if there is one, as a file of this machine."""
    try:
        return _make("job", bytes(store.get(keys.JOB)).decode())
    except ObjectNotFound:
        return None
    except UnicodeDecodeError as error:
        raise JobError(f"{store.url}/{keys.JOB} is not Python: {error}; give the job file with --job") from error


def _find(job: Job) -> tuple[ModuleType, str]:
    """The module and the variable that hold the job. One that can be imported comes before what the user runs, which
    may only have imported the job from it."""
    found = [
        (module, variable)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and (module.__name__ == "__main__" or getattr(module, "__file__", None))
        for variable, value in list(vars(module).items())
        if value is job and not variable.startswith("_")
    ]
    if not found:
        raise JobError(f"the job that was given is in no variable by which members can find it; {_HOW}")
    return min(found, key=lambda place: place[0].__name__ == "__main__")


def _importing(name: str, path: Path, variable: str) -> str:
    """Source for a module in a package, whose own imports may be relative."""
    depth = name.count(".") + (path.name == "__init__.py")
    root = str(path.parents[depth])
    return f"import sys\n\nsys.path.insert(0, {root!r})\nfrom {name} import {variable} as job\n"


def _make(stem: str, text: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zooid-job-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{stem}.py"
    file.write_text(text)
    _made.add(file)
    return file
