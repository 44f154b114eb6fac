"""Handwritten digits: 1,797 images of 8 × 8 pixels that scikit-learn ships, and a small convolutional network.

zooid train examples/digits.py --layout 2x2 --store file:///tmp/digits
python examples/digits.py file:///tmp/digits
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import zooid


def split(train: bool) -> TensorDataset:
    """300 images at random, always the same, are for the test; the rest for training."""
    from sklearn.datasets import load_digits  # takes as long as PyTorch, and only some members read samples

    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = order[300:] if train else order[:300]
    return TensorDataset(images[chosen], labels[chosen])


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(128 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


job = zooid.Job(
    model=build_model,
    loss=F.cross_entropy,
    data=lambda: split(train=True),
    optimizer=lambda named: torch.optim.AdamW(named, lr=2e-3),
    batch_size=256,
    epochs=20,
)


def test_accuracy(run_url: str) -> float:
    """Of the run's last checkpoint, loaded into the plain model."""
    model = build_model()
    model.load_state_dict(zooid.load_checkpoint(run_url))
    images, labels = split(train=False).tensors
    with torch.no_grad():
        return float((model.eval()(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    accuracy = test_accuracy(sys.argv[1])
    print(f"test accuracy {accuracy:.3f}")
    sys.exit(accuracy < 0.95)
