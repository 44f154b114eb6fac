"""Running statistics of one job are the same in every layout, and after a single grain those of plain PyTorch."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

import zooid
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers, train_untouched_model
from zooid.core.plans.plan import ScheduleName
from zooid.schedule.samples import even_shares

pytestmark = pytest.mark.timeout(300)

TOLERANCE = 1e-12
NUM_SAMPLES = 52
NUM_GRAINS = 6
"""With a batch of 24 samples and grains of 4; the last step of an epoch has a single grain."""
FIELDS = {
    "model": "build_normed",
    "optimizer": "lambda named: torch.optim.SGD(named, lr=0.1)",
    "batch_size": "24",
    "grain_size": "4",
    "epochs": "2",
}

_MODEL = """
class Follows(nn.Module):
    \"\"\"An average and a count of its own.\"\"\"

    def __init__(self, width):
        super().__init__()
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("num_samples", torch.zeros((), dtype=torch.int64))
        self.register_buffer("constant", torch.linspace(0.1, 0.7, width))

    def forward(self, values):
        result = values * self.constant - self.average
        if self.training:
            self.follow(values.detach())
        return result

    def follow(self, values):
        self.average.lerp_(values.mean(0), 0.3)
        self.num_samples += values.shape[0]


class Replaces(Follows):
    \"\"\"Puts new tensors in the places of its buffers.\"\"\"

    def follow(self, values):
        self.average = self.average.lerp(values.mean(0), 0.3)
        self.num_samples = self.num_samples + values.shape[0]


def build_normed(follows=Follows):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, momentum=0.4), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 12), follows(12), nn.BatchNorm1d(12, momentum=None), nn.Linear(12, 10), nn.BatchNorm1d(10),
    ).double()

"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("statistics")


def job_of(folder: Path, name: str, **fields: str) -> Path:
    file = folder / f"{name}.py"
    return (
        file if file.exists() else write_job(file, num_samples=NUM_SAMPLES, extra=_MODEL, fields={**FIELDS, **fields})
    )


@cache
def reference(job_file: Path) -> Trained:
    return train_composed_layers(job_file)


def train(
    forking: RecordingPlatform,
    job_file: Path,
    layout: tuple[int, int],
    schedule: ScheduleName = "gpipe",
    shares: tuple[int, ...] = (),
) -> Mapping[str, Tensor]:
    """The state dict that a run ends with."""
    num_replicas, num_stages = layout
    plan = plan_by_hand(
        job_file, num_replicas=num_replicas, cuts=num_stages, schedule=schedule, transport="tcp", shares=shares
    )
    store = job_file.parent / f"{job_file.stem}-{num_replicas}x{num_stages}-{schedule}"
    result = zooid.train(job_file, store=store.as_uri(), plan=plan, platform=forking)
    return zooid.load_checkpoint(result.checkpoint)


def assert_same_statistics(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    names = [name for name in wanted if name.rpartition(".")[2] not in ("weight", "bias")]
    assert len(names) == 15
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=TOLERANCE, msg=name)
    largest = max(float((found[name] - wanted[name]).abs().max()) for name in names)
    print(f"largest difference of a statistic: {largest:.1e}")


LAYOUTS: list[tuple[tuple[int, int], ScheduleName, tuple[int, ...]]] = [
    ((1, 1), "1f1b", ()),
    ((2, 1), "1f1b", ()),
    ((3, 1), "1f1b", (1, 3, 2)),
    ((1, 2), "gpipe", ()),
    ((1, 3), "1f1b", ()),
    ((2, 2), "gpipe", (4, 2)),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The uneven layouts are always tried, the others with `--thorough`."""
    if "schedule" in metafunc.fixturenames:
        is_all = metafunc.config.getoption("--thorough")
        chosen = [layout for layout in LAYOUTS if is_all or layout[2]]
        metafunc.parametrize(("layout", "schedule", "shares"), chosen, ids=str)


def test_every_layout_has_the_statistics_of_one_process(
    forking: RecordingPlatform,
    folder: Path,
    layout: tuple[int, int],
    schedule: ScheduleName,
    shares: tuple[int, ...],
) -> None:
    job_file = job_of(folder, "normed")
    found = train(forking, job_file, layout, schedule, shares)
    assert_same_statistics(found, reference(job_file).state)
    assert int(found["1.num_batches_tracked"]) == 2 * (2 * NUM_GRAINS + 1), "each grain once"
    assert int(found["8.num_samples"]) == 2 * NUM_SAMPLES, "each sample once"


@pytest.mark.parametrize("shares", [(6,), (1, 3, 2)], ids=str)
def test_so_has_a_model_that_cannot_be_cut(forking: RecordingPlatform, folder: Path, shares: tuple[int, ...]) -> None:
    """It puts new tensors in the places of its buffers, which a trace would write to the old ones."""
    job_file = job_of(folder, "whole", model="lambda: build_normed(Replaces)", whole="True")
    found = train(forking, job_file, (len(shares), 1), "1f1b", shares)
    assert_same_statistics(found, reference(job_of(folder, "normed")).state)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As members have: sums that two threads divide are rounded otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (1, 2)], ids=str)
def test_a_single_grain_leaves_the_bits_of_plain_pytorch(
    forking: RecordingPlatform, folder: Path, layout: tuple[int, int]
) -> None:
    """After one step, since gradients may be rounded otherwise, and with them the weights of the next step."""
    job_file = job_of(folder, "single", batch_size=str(NUM_SAMPLES), grain_size=str(NUM_SAMPLES), epochs="1")
    num_replicas = layout[0]
    found = train(forking, job_file, layout, shares=even_shares(1, num_replicas))
    for name, wanted in train_untouched_model(job_file).state.items():
        if name.rpartition(".")[2] not in ("weight", "bias"):
            assert torch.equal(found[name], wanted), name
