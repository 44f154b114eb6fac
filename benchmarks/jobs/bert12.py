"""BERT of 12 layers and width 256, batches of 32 sequences of 64 tokens."""

from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

import zooid

LENGTH = 64


class Sentences(Dataset[tuple[dict[str, torch.Tensor], None]]):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], None]:
        tokens = torch.randint(1, 2000, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens[0] % 3}, None


def build_model() -> Any:
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=256, num_hidden_layers=12, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=128, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


job = zooid.Job(
    model=build_model,
    loss=None,
    data=Sentences,
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-4),
    batch_size=32,
    epochs=1,
)
