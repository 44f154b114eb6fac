"""Data sets of unequal samples, and such that can only be iterated over, are trained on as the plain loop does it."""

from pathlib import Path

import pytest

import zooid
from tests.integration.jobs import plan_by_hand
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import train_untouched_model
from zooid.core.plans.plan import Limits

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9

TEXTS = '''"""Sequences of unequal lengths, in dicts, as libraries of data sets have them."""

import torch
import torch.nn.functional as F
from torch import nn

import zooid

LENGTH, NUM_TOKENS, PADDING = 9, 30, -100


def texts():
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, LENGTH + 1, (50,), generator=generator).tolist()
    starts = torch.randint(NUM_TOKENS, (50,), generator=generator).tolist()
    sequences = [[(start + 3 * at) % NUM_TOKENS for at in range(n + 1)] for start, n in zip(starts, lengths)]
    return [{"input": sequence[:-1], "labels": sequence[1:]} for sequence in sequences]


def pad(samples):
    def column(name, value):
        return torch.tensor([sample[name] + [value] * (LENGTH - len(sample[name])) for sample in samples])

    return {"input": column("input", 0), "labels": column("labels", PADDING)}


def token_mean(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=PADDING)


def model():
    return nn.Sequential(nn.Embedding(NUM_TOKENS, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, NUM_TOKENS)).double()


job = zooid.Job(
    model=model,
    loss=token_mean,
    data=texts,
    collate=pad,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-2),
    batch_size=12,
    grain_size=3,
    epochs=2,
)
'''

STREAM = '''"""Samples that are made one after the other, and a loss that is a sum."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import IterableDataset

import zooid


class Stream(IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        while True:
            values = torch.randn(5, generator=generator, dtype=torch.float64)
            yield values, values.cumsum(0)


job = zooid.Job(
    model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5)).double(),
    loss=nn.MSELoss(reduction="sum"),
    data=Stream,
    num_samples=50,
    optimizer=lambda named: torch.optim.SGD(named, lr=1e-3),
    evaluation=lambda: [(torch.ones(5).double(), torch.zeros(5).double())] * 9,
    batch_size=12,
    grain_size=5,
    epochs=2,
    data_workers=1,
)
'''


@pytest.mark.parametrize(("num_replicas", "cuts"), [(1, (1,)), (2, ())], ids=["1x2", "2x1"])
@pytest.mark.parametrize("text", [TEXTS, STREAM], ids=["collate", "iterable"])
def test_a_run_is_the_plain_loop(
    forking: RecordingPlatform, tmp_path: Path, text: str, num_replicas: int, cuts: tuple[int, ...]
) -> None:
    job_file = tmp_path / "job.py"
    job_file.write_text(text)
    expected = train_untouched_model(job_file)
    plan = plan_by_hand(job_file, num_replicas=num_replicas, cuts=cuts)
    result = zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(result.checkpoint) <= TOLERANCE


def test_samples_padded_to_the_longest_of_a_grain_are_trained_on_by_replicas(tmp_path: Path) -> None:
    job_file = tmp_path / "job.py"
    job_file.write_text(
        TEXTS.replace("(LENGTH - len(sample[name]))", "(longest - len(sample[name]))").replace(
            "    def column", '    longest = max(len(sample["input"]) for sample in samples)\n\n    def column'
        )
    )
    expected = train_untouched_model(job_file)
    limits = Limits(num_replicas=2)
    result = zooid.train(job_file, store=(tmp_path / "run").as_uri(), limits=limits)
    assert expected.loss_difference(result.losses) <= TOLERANCE
    assert expected.weight_difference(result.checkpoint) <= TOLERANCE
