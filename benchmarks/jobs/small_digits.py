"""The example of handwritten digits with a small model, which many members compute on one machine."""

import dataclasses
import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples import digits


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


job = dataclasses.replace(digits.job, model=build_model, grain_size=8, epochs=2)
