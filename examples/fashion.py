"""Fashion-MNIST: 60,000 pictures of clothes from Debian's package dataset-fashion-mnist, and a small network.

The job begins with one replica and batches of 256 samples. After every epoch, AdaBatch doubles both, here up to two
replicas, and the learning rate decays.

apt-get install dataset-fashion-mnist
zooid train examples/fashion.py --layout 1x1 --transport tcp --no-profile --store file:///tmp/fashion
python examples/fashion.py file:///tmp/fashion
"""

import gzip
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import zooid

FOLDER = Path("/usr/share/datasets/fashion-mnist")
BATCH_SIZE = 256

Sample = tuple[npt.NDArray[np.uint8], int]


class Clothes(Dataset[Sample]):
    """Pictures of 28 × 28 bytes, and the number of the kind of clothes that each shows."""

    def __init__(self, part: Literal["train", "t10k"]) -> None:
        def read(name: str, offset: int) -> npt.NDArray[np.uint8]:
            with gzip.open(FOLDER / f"{part}-{name}-ubyte.gz") as file:
                return np.frombuffer(file.read(), np.uint8, offset=offset)

        self.images = read("images-idx3", 16).reshape(-1, 28, 28)
        self.labels = read("labels-idx1", 8).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Sample:
        return self.images[number], self.labels[number]


def stack(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack the bytes of a batch, which are fewer than those of its numbers."""
    images, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


class Standardised(nn.Module):
    """Turns bytes into numbers around 0, by the mean and the deviation of all training pictures."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images.float() - 72.9) / 90.0


def build_model(width: int = 64) -> nn.Module:
    return nn.Sequential(Standardised(), nn.Flatten(), nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, 10))


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float().mean()


job = zooid.Job(
    model=build_model,
    loss=F.cross_entropy,
    data=lambda: Clothes("train"),
    collate=stack,
    optimizer=lambda named: torch.optim.Adam(named, lr=1e-3),
    batch_size=BATCH_SIZE,
    grain_size=BATCH_SIZE,
    epochs=5,
    evaluation=lambda: Clothes("t10k"),
    metrics={"accuracy": accuracy},
    scaling=zooid.scaling.adabatch(every=1, max_batch=2 * BATCH_SIZE, per_replica=BATCH_SIZE),
)


def test_accuracy(run_url: str) -> float:
    """Of the run's last checkpoint, loaded into the plain model."""
    model = build_model()
    model.load_state_dict(zooid.load_checkpoint(run_url))
    clothes = Clothes("t10k")
    images, labels = stack([clothes[number] for number in range(len(clothes))])
    with torch.no_grad():
        return float(accuracy(model.eval()(images), labels))


if __name__ == "__main__":
    reached = test_accuracy(sys.argv[1])
    print(f"test accuracy {reached:.3f}")
    sys.exit(reached < 0.83)
