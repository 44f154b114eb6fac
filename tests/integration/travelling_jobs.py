"""Two jobs in float64 that are trained on every platform, and what one process makes of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import examples.digits
from tests.integration.reference import Trained, train_composed_layers

TOLERANCE = 1e-9
"""The largest difference between a run and one process. Sums in another order differ by less."""
DIGITS = '''"""The example of handwritten digits in float64, for a few steps."""

import dataclasses
from pathlib import Path

import digits
import torch
from torch.utils.data import TensorDataset


def data():
    return TensorDataset(*torch.load(Path(__file__).with_name("digits.pt")))


job = dataclasses.replace(
    digits.job, model=lambda: digits.build_model().double(), data=data, epochs=1, batch_size=60, grain_size=10
)
'''
GPT2 = '''"""A small GPT-2 in float64, which continues random text."""

import torch
import transformers
from torch.utils.data import Dataset

import zooid


class Text(Dataset):
    def __init__(self):
        self.ids = torch.randint(1, 50, (48, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index].clone()}, None


def build_model():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=4, n_head=4, use_cache=False, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLMLoss",
    )
    return transformers.GPT2LMHeadModel(config).double()


job = zooid.Job(
    model=build_model,
    loss=lambda output, target: output.loss,
    data=Text,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-3),
    batch_size=16,
    grain_size=4,
    epochs=1,
)
'''


def travelling_jobs(new_folder: Callable[[str], Path]) -> dict[str, tuple[Path, Trained]]:
    """Write both jobs into folders that no other machine sees, and train each in this process."""
    made = {}
    for name, text in {"digits": DIGITS, "gpt2": GPT2}.items():
        folder = new_folder(name)
        (folder / "job.py").write_text(text)
        if name == "digits":
            shutil.copy(examples.digits.__file__, folder)
            images, labels = examples.digits.split(train=True).tensors
            torch.save((images[:240].double(), labels[:240]), folder / "digits.pt")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            made[name] = (folder / "job.py", train_composed_layers(folder / "job.py"))
    return made
