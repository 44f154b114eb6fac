"""Folders of tar shards, written by webdataset itself."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

from zooid.core.jobs.job import Job

SAMPLES_PER_SHARD = 10
READING_JOB = Job(model=dict, loss=None, data=list, optimizer=list, batch_size=1, epochs=1)
"""Says that samples are pairs which are stacked; nothing of it is built."""


def write_shards(folder: Path, num_samples: int, *, values_per_sample: int = 50) -> str:
    """The URL of a folder with shards of ten samples; sample n is full of n, and its class is n % 7."""
    folder.mkdir(parents=True)
    pattern = f"{folder}/train-%04d.tar"
    with webdataset.ShardWriter(pattern, maxcount=SAMPLES_PER_SHARD, verbose=0) as writer:
        for number in range(num_samples):
            values = np.full(values_per_sample, number, np.float32)
            writer.write({"__key__": f"{number:06d}", "values.npy": values, "cls": number % 7})
    return folder.as_uri()


def decode(files: dict[str, bytes]) -> tuple[Any, int]:
    return np.load(io.BytesIO(files["values.npy"])), int(files["cls"])


def number_of(sample: tuple[Any, int]) -> int:
    """Which sample it is, if it is whole."""
    values, label = sample
    number = int(values[0])
    assert (values == number).all()
    assert label == number % 7
    return number
