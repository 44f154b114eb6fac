"""A run that an earlier version began is resumed by this one, and ends as the earlier version would have ended it.

Each archive holds `run`, a run of `job.py` in two replicas that was interrupted after step 6 of 12, and `whole`, the
weights of the same run without interruption. Every release adds the archive of the version before; see CONTRIBUTING.md.
"""

import tarfile
from pathlib import Path

import pytest
from safetensors.torch import load_file

import zooid
from tests.integration.recording import RecordingPlatform
from zooid.core.runs.events import StepCommitted

HERE = Path(__file__).parent / "stored_runs"
ARCHIVES = sorted(HERE.glob("run-*.tar.gz"))

NOISE = ("0.bias", "1.running_mean")
"""A bias before batch norm has no effect. Its gradient is rounding errors, which differ between processors and which
AdamW scales to full steps, and the running mean follows it."""

pytestmark = pytest.mark.timeout(120)


def test_there_is_a_run_of_an_earlier_version() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "limits", [None, zooid.Limits(num_replicas=1, num_stages=2)], ids=["as before", "in another layout"]
)
def test_a_run_of_an_earlier_version_is_resumed(
    tmp_path: Path, forking: RecordingPlatform, archive: Path, limits: zooid.Limits | None
) -> None:
    with tarfile.open(archive) as stored:
        stored.extractall(tmp_path, filter="data")
    url = (tmp_path / "run").as_uri()
    events: list[object] = []
    zooid.resume(
        url,
        job_file=HERE / "job.py",
        limits=limits,
        platform=forking,
        on_event=events.append,
    )
    steps = [event.step for event in events if isinstance(event, StepCommitted)]
    assert steps == list(range(6, 12))
    weights = zooid.load_checkpoint(url)
    wanted = {name: value for part in sorted((tmp_path / "whole").iterdir()) for name, value in load_file(part).items()}
    assert weights.keys() == wanted.keys()
    for name, value in wanted.items():
        assert name in NOISE or (weights[name] - value).abs().max() < 1e-5, name
