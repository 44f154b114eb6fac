"""With `reproducible`, every layout of a job trains the same bits: weights, running statistics and losses."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from msgspec import structs
from torch import Tensor

import zooid
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform
from zooid.core.plans.plan import ScheduleName, TransportName

pytestmark = pytest.mark.timeout(300)

_MODEL = """
class Block(nn.Module):
    \"\"\"Uses a value twice.\"\"\"

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, values):
        return torch.relu(self.norm(self.conv(values)) + values)


def build_mixed():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Block(), nn.Dropout(0.2), Block(), nn.Flatten(),
        nn.Linear(144, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 10),
    )


def single_data():
    return TensorDataset(build_data().tensors[0].float(), build_data().tensors[1])

"""
FIELDS = {"model": "build_mixed", "data": "single_data", "batch_size": "28", "grain_size": "4", "epochs": "2"}
"""Seven grains in a step; the last step of an epoch has a single one."""
NUM_SAMPLES = 60
PRECISIONS = {
    "float32": {"clip_norm": "0.5"},
    "bf16": {"autocast": '"bf16"'},
    "fp16": {"autocast": '"fp16"', "clip_norm": "0.5"},
}

Layout = tuple[str, int, ScheduleName, TransportName, tuple[int, ...]]
"""Precision, number of stages, schedule, transport, and the grains of each replica."""
LAYOUTS: list[Layout] = [
    ("float32", 1, "1f1b", "tcp", (2, 4, 1)),
    ("float32", 2, "gpipe", "tcp", (3, 4)),
    ("bf16", 1, "1f1b", "tcp", (2, 2, 1, 2)),
    ("float32", 1, "1f1b", "gloo", (5, 2)),
]
MORE_LAYOUTS: list[Layout] = [
    ("float32", 1, "1f1b", "tcp", (4, 3)),
    ("float32", 1, "1f1b", "store", (1, 1, 4, 1)),
    ("float32", 2, "1f1b", "tcp", (7,)),
    ("float32", 3, "1f1b", "tcp", (7,)),
    ("bf16", 1, "1f1b", "tcp", (3, 4)),
    ("bf16", 1, "1f1b", "tcp", (2, 4, 1)),
    ("bf16", 2, "1f1b", "tcp", (7,)),
    ("bf16", 2, "gpipe", "tcp", (5, 2)),
    ("fp16", 1, "1f1b", "tcp", (2, 4, 1)),
    ("fp16", 2, "gpipe", "tcp", (5, 2)),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "layout" in metafunc.fixturenames:
        is_all = metafunc.config.getoption("--thorough")
        metafunc.parametrize("layout", LAYOUTS + (MORE_LAYOUTS if is_all else []), ids=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproducible")


def train(
    forking: RecordingPlatform, folder: Path, layout: Layout, *, reproducible: bool = True
) -> tuple[Mapping[str, Tensor], tuple[float, ...]]:
    """The state dict that a run ends with, and the losses of its steps."""
    precision, num_stages, schedule, transport, shares = layout
    file = folder / f"{precision}.py"
    if not file.exists():
        write_job(file, num_samples=NUM_SAMPLES, extra=_MODEL, fields={**FIELDS, **PRECISIONS[precision]})
    plan = plan_by_hand(
        file, num_replicas=len(shares), cuts=num_stages, schedule=schedule, transport=transport, shares=shares
    )
    plan = structs.replace(plan, reproducible=reproducible)
    store = folder / "-".join(map(str, (*layout[:-1], *shares, reproducible)))
    result = zooid.train(file, store=store.as_uri(), plan=plan, platform=forking)
    return zooid.load_checkpoint(result.checkpoint), result.losses


@cache
def alone(forking: RecordingPlatform, folder: Path, precision: str) -> tuple[Mapping[str, Tensor], tuple[float, ...]]:
    """What one member trains by itself."""
    return train(forking, folder, (precision, 1, "1f1b", "tcp", (7,)))


def differing(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, float]:
    """Names of tensors that are not equal bit for bit, with their largest differences."""
    assert found.keys() == wanted.keys()
    return {
        name: float((found[name] - value).abs().max())
        for name, value in wanted.items()
        if found[name].numpy().tobytes() != value.numpy().tobytes()
    }


def test_every_layout_trains_the_same_bits(forking: RecordingPlatform, folder: Path, layout: Layout) -> None:
    state, losses = train(forking, folder, layout)
    wanted, wanted_losses = alone(forking, folder, layout[0])
    assert differing(state, wanted) == {}
    assert losses == wanted_losses


def test_other_bits_without_it(forking: RecordingPlatform, folder: Path) -> None:
    """Otherwise the tests above could not fail."""
    state, _ = train(forking, folder, ("float32", 1, "1f1b", "tcp", (2, 4, 1)), reproducible=False)
    assert differing(state, alone(forking, folder, "float32")[0])
