"""Jobs that a hand-written loop can be held against: a ResNet-like and a GPT-2-like model on data in memory."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid

NUM_CLASSES = 10
NUM_EPOCHS = int(os.environ.get("ZOOID_BENCHMARK_EPOCHS", "100000"))
"""Of 8 steps."""


class Block(nn.Module):
    """Two convolutions around a skip connection, with batch norm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(h)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        widths = [width, 2 * width, 4 * width]
        blocks = []
        for number, outputs in enumerate(widths):
            inputs = widths[max(0, number - 1)]
            blocks += [
                Block(inputs if at == 0 else outputs, outputs, 2 if at == 0 and number else 1) for at in range(depth)
            ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(h.mean((2, 3)))  # type: ignore[no-any-return]


class Gpt2Like(nn.Module):
    """Causal transformer with dropout and tied embeddings."""

    def __init__(self, width: int, depth: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
                for _ in range(depth)
            ]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            h = layer(h, src_mask=self.mask)
        return self.head(self.norm(h))  # type: ignore[no-any-return]


def token_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def resnet_job(batch_size: int, width: int = 16, depth: int = 2, side: int = 32, grain_size: int = 0) -> zooid.Job:
    def data() -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        count = 8 * batch_size
        images = torch.randn(count, 3, side, side, generator=generator)
        return TensorDataset(images, torch.randint(NUM_CLASSES, (count,), generator=generator))

    return zooid.Job(
        model=lambda: ResNet(width, depth),
        loss=F.cross_entropy,
        data=data,
        optimizer=lambda named: torch.optim.SGD(named, lr=0.01, momentum=0.9),
        batch_size=batch_size,
        grain_size=pinned(grain_size, batch_size),
        epochs=NUM_EPOCHS,
        data_workers=2 if torch.cuda.is_available() else 0,
    )


def gpt2_job(
    batch_size: int, width: int = 128, depth: int = 4, vocabulary: int = 1000, length: int = 64, grain_size: int = 0
) -> zooid.Job:
    def data() -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(vocabulary, (8 * batch_size, length + 1), generator=generator)
        return TensorDataset(ids[:, :-1], ids[:, 1:])

    return zooid.Job(
        model=lambda: Gpt2Like(width, depth, vocabulary, length),
        loss=token_loss,
        data=data,
        optimizer=lambda named: torch.optim.AdamW(named, lr=1e-4),
        batch_size=batch_size,
        grain_size=pinned(grain_size, batch_size),
        epochs=NUM_EPOCHS,
        data_workers=2 if torch.cuda.is_available() else 0,
    )


def pinned(grain_size: int, batch_size: int) -> int | None:
    """0 is the whole batch; below that, whoever plans may choose."""
    return None if grain_size < 0 else grain_size or batch_size


def from_environment() -> zooid.Job:
    """The job that a benchmark asked for: a job file takes no arguments."""
    name, *sizes = os.environ.get("ZOOID_BENCHMARK_JOB", "resnet,16").split(",")
    make = resnet_job if name == "resnet" else gpt2_job
    return make(*(int(size) for size in sizes))


job = from_environment()
