"""`zooid.train(job)` with a job that lies in a notebook cell, a script or a module instead of a job file."""

import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import zooid
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import train_composed_layers
from zooid.core.errors import JobError
from zooid.core.jobs.job import Job
from zooid.core.records import decode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointRule
from zooid.core.runs.spec import RunClaim
from zooid.store import clear, open_store
from zooid.store.checkpoint_index import last_step

pytestmark = pytest.mark.timeout(240)

TOLERANCE = 1e-9
DEFINITIONS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid

torch.set_default_dtype(torch.float64)
SIZE = 6
"""
DATA = """
def build_data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, SIZE, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(SIZE, 8), nn.ReLU(), nn.Linear(8, 2))
"""
ELSEWHERE = """
model = Net()
raise RuntimeError("of a cell that has nothing to do with the job")
"""
JOB = """
def speak(event):
    print("step", event.step, "in the notebook's job")

def sgd(named):
    return torch.optim.SGD(named, lr=0.1)

small = zooid.Job(
    model=Net,
    loss=F.cross_entropy,
    data=build_data,
    optimizer=sgd,
    batch_size=20,
    grain_size=10,
    epochs=2,
    on_event=speak,
)
"""
TRAIN = """
result = zooid.train(small, store={url!r}, limits=zooid.Limits(num_replicas=1, num_stages=1), profile=False)
"""
CHECK = """
print(len(result.losses), "steps")
plain = Net()
plain.load_state_dict(zooid.load_checkpoint(result.checkpoint))
print(plain[0].weight.dtype)
"""


def test_a_notebook_trains_the_job_of_its_own_cell(tmp_path: Path) -> None:
    """Definition and training in one cell, after others of which some fail; prints of members appear below it."""
    url = (tmp_path / "run").as_uri()
    notebook = nbformat.NotebookNode(nbformat=4, nbformat_minor=4, metadata={})
    cells = [DEFINITIONS, DATA, ELSEWHERE, JOB + TRAIN.format(url=url), CHECK]
    notebook.cells = [
        nbformat.NotebookNode(cell_type="code", source=cell, metadata={}, outputs=[], execution_count=None)
        for cell in cells
    ]
    client = NotebookClient(notebook, timeout=200, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [list(cell.outputs) for cell in notebook.cells]
    failed = [any(output.output_type == "error" for output in found) for found in outputs]
    assert failed == [cell == ELSEWHERE for cell in cells], outputs
    printed = "".join(output.text for output in outputs[3] if output.get("name") == "stdout")
    assert printed.splitlines() == [f"step {step} in the notebook's job" for step in range(4)]
    assert "".join(output.text for output in outputs[4]) == "4 steps\ntorch.float64\n"
    source = bytes(open_store(url).get("job.py")).decode()
    assert "RuntimeError" not in source
    assert "zooid.train" not in source


class TestScripts:
    def run(self, folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
        script = folder / "script.py"
        script.write_text(text)
        return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=200)

    def test_a_script_trains_its_own_job(self, tmp_path: Path) -> None:
        call = textwrap.indent(TRAIN.format(url=(tmp_path / "run").as_uri()), "    ")
        text = f'{DEFINITIONS}{DATA}{JOB}\nif __name__ == "__main__":{call}    print(len(result.losses), "steps")\n'
        ended = self.run(tmp_path, text)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.splitlines()[-2:] == ["step 3 in the notebook's job", "4 steps"]

    def test_one_without_a_guard_is_told_so_instead_of_starting_runs_in_its_members(self, tmp_path: Path) -> None:
        ended = self.run(tmp_path, DEFINITIONS + DATA + JOB + TRAIN.format(url=(tmp_path / "run").as_uri()))
        assert ended.returncode == 1
        assert (
            f"JobError: {tmp_path}/script.py starts a run when a member executes it to build its job; put that call "
            'under if __name__ == "__main__":'
        ) in ended.stderr
        assert open_store((tmp_path / "run").as_uri()).is_empty()


def test_a_job_of_a_module_trains_and_goes_on(
    forking: RecordingPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's folder says where the job is, also when the file that was written for it is gone."""
    job_file = write_job(tmp_path / "jobs_of_mine.py", fields={"epochs": "1"})
    job_file.write_text(job_file.read_text().replace("\njob = zooid.Job", "\ntiny = zooid.Job"))
    plain = write_job(tmp_path / "plain.py", fields={"epochs": "1"})
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("jobs_of_mine")
    plan, url = plan_by_hand(plain, cuts=2), (tmp_path / "run").as_uri()
    rule = CheckpointRule(every_steps=2)
    zooid.train(module.tiny, store=url, plan=plan, checkpoints=rule, platform=forking)
    store = open_store(url)
    clear(store, keys.checkpoint(last_step(store)))
    made_file = Path(decode_record(bytes(store.get(keys.CLAIM)), RunClaim, keys.CLAIM).job_file)
    made_file.unlink()  # as when the process that began the run has ended
    result = zooid.resume(url, platform=forking)
    assert train_composed_layers(plain).weight_difference(result.checkpoint) <= TOLERANCE


def test_a_job_that_members_cannot_find_is_refused(tmp_path: Path) -> None:
    job = Job(model=list, loss=None, data=list, optimizer=lambda named: None, batch_size=8, epochs=2)
    with pytest.raises(
        JobError, match="is in no variable in which members can find it; assign it to a variable at the"
    ):
        zooid.train(job, store=(tmp_path / "run").as_uri())
    assert not (tmp_path / "run").exists()
