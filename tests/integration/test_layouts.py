"""Every layout trains to what the composed layers come to in one process, number for number.

Five models, seven layouts, both schedules, both transports; `--thorough` tries all, otherwise each model is tried
in a few that are drawn at random, all layouts, schedules and transports being among them.
"""

import itertools
import random
from functools import cache
from pathlib import Path

import pytest
import torch

import zooid
from tests.integration.jobs import plan_by_hand
from tests.integration.model_jobs import NUM_STEPS, write_model_job
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import Trained, train_composed_layers
from zooid.core.plans.plan import ScheduleName, TransportName

pytestmark = pytest.mark.timeout(300)

MODELS = ("gpt2", "resnet", "unet", "lstm", "mlp")
LAYOUTS = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (3, 2), (4, 1))
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b")
TRANSPORTS: tuple[TransportName, ...] = ("store", "tcp")
TOLERANCE = 1e-9

Case = tuple[str, tuple[int, int], ScheduleName, TransportName]


def cases() -> list[Case]:
    """All of them, those that are always tried first: a Latin square of models, layouts, schedules and transports."""
    every = list(itertools.product(MODELS, LAYOUTS, SCHEDULES, TRANSPORTS))
    drawn = random.Random(7)
    first: list[Case] = []
    for number, layout in enumerate(LAYOUTS):
        for turn, (schedule, transport) in enumerate(itertools.product(SCHEDULES, TRANSPORTS)):
            if (number + turn) % 2 == 0:
                first.append((MODELS[(number + turn) % len(MODELS)], layout, schedule, transport))
    drawn.shuffle(first)
    return [*first, *(case for case in every if case not in first)]


NUM_ALWAYS = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@cache
def reference(job_file: Path) -> Trained:
    return train_composed_layers(job_file)


def job_of(folder: Path, name: str, arguments: str = "", suffix: str = "") -> Path:
    file = folder / f"{name}{suffix}.py"
    return file if file.exists() else write_model_job(file, name, arguments)


def differences(
    forking: RecordingPlatform,
    job_file: Path,
    layout: tuple[int, int],
    schedule: ScheduleName,
    transport: TransportName,
    shares: tuple[int, ...] = (),
) -> tuple[float, float]:
    """Of losses and of weights, between a run and the composed layers."""
    num_replicas, num_stages = layout
    plan = plan_by_hand(
        job_file, num_replicas=num_replicas, cuts=num_stages, schedule=schedule, transport=transport, shares=shares
    )
    store = job_file.parent / f"{job_file.stem}-{num_replicas}x{num_stages}-{schedule}-{transport}"
    result = zooid.train(job_file, store=store.as_uri(), plan=plan, platform=forking)
    expected = reference(job_file)
    assert len(result.losses) == NUM_STEPS
    return expected.loss_difference(result.losses), expected.weight_difference(result.checkpoint)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        chosen = cases() if metafunc.config.getoption("--thorough") else cases()[:NUM_ALWAYS]
        names = [
            f"{model}-{layout[0]}x{layout[1]}-{schedule}-{transport}" for model, layout, schedule, transport in chosen
        ]
        metafunc.parametrize("case", chosen, ids=names)


def test_a_layout_trains_to_what_one_process_does(case: Case, forking: RecordingPlatform, folder: Path) -> None:
    name, layout, schedule, transport = case
    in_loss, in_weights = differences(forking, job_of(folder, name), layout, schedule, transport)
    print(f"{name} {layout[0]}x{layout[1]} {schedule} {transport}: loss {in_loss:.1e}, weights {in_weights:.1e}")
    assert in_loss <= TOLERANCE
    assert in_weights <= TOLERANCE


def test_replicas_with_unequal_shares_weigh_every_sample_the_same(forking: RecordingPlatform, folder: Path) -> None:
    """48 + 16 samples of a batch of 64."""
    arguments = (
        f"batch_size=64, grain_size=16, epochs={NUM_STEPS}, data=lambda: model_jobs.Samples('unet', num_samples=64)"
    )
    job_file = job_of(folder, "unet", arguments, "-uneven")
    found = differences(forking, job_file, (2, 2), "1f1b", "tcp", shares=(3, 1))
    assert max(found) <= TOLERANCE


def test_tokens_weigh_the_same_wherever_they_are(forking: RecordingPlatform, folder: Path) -> None:
    """Samples have from none to all of their tokens counted; the loss is a sum and a weight."""
    job_file = job_of(folder, "gpt2", "weighted=True", "-weighted")
    found = differences(forking, job_file, (2, 2), "gpipe", "tcp")
    assert max(found) <= TOLERANCE


def test_float32_differs_by_rounding_only(forking: RecordingPlatform, folder: Path) -> None:
    """Sums in another order differ, and an optimizer that divides by small numbers makes more of it."""
    job_file = job_of(folder, "mlp", "dtype=torch.float32", "-float32")
    in_loss, in_weights = differences(forking, job_file, (2, 2), "1f1b", "tcp")
    print(f"float32 2x2: loss {in_loss:.1e}, weights {in_weights:.1e}")
    assert in_loss <= 1e-3


@pytest.fixture
def fresh_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch uses oneDNN no more in a process in which it has failed once, as it does for some shapes, and other code
    computes other bits."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)


@pytest.mark.usefixtures("fresh_onednn")
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
def test_smaller_types_cross_cuts_as_they_are(forking: RecordingPlatform, folder: Path, autocast: str) -> None:
    """The first step of a pipeline computes the very numbers that one process does; later, gradients that were added
    in another order are rounded to a few digits, again and again."""
    arguments = f"dtype=torch.float32, autocast={autocast!r}, clip_norm=None, epochs=2"
    job_file = job_of(folder, "mlp", arguments, f"-{autocast}")
    plan = plan_by_hand(job_file, cuts=3, schedule="1f1b", transport="tcp")
    result = zooid.train(job_file, store=(folder / autocast).as_uri(), plan=plan, platform=forking)
    expected = reference(job_file)
    print(f"{autocast} 1x3: loss {expected.loss_difference(result.losses):.1e}")
    assert result.losses[0] == pytest.approx(expected.losses[0], abs=1e-7)
    assert expected.loss_difference(result.losses) <= 5e-3
