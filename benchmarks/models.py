"""Models that layers, profiles and plans are tried on: well-known architectures with random weights, in two sizes.

`small` ones run in milliseconds; `medium` ones keep a core busy for some tens of milliseconds with a few samples. Each
comes with inputs of any number of samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SizeName = Literal["small", "medium"]
Inputs = dict[str, Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Specimen:
    """One architecture. Where its output carries no loss of its own, `loss` makes one of it."""

    build: Callable[[SizeName, float], nn.Module]
    """(size, dropout) -> the model"""
    inputs: Callable[[SizeName, int], Inputs]
    loss: Callable[[Any], Tensor]


def specimens() -> dict[str, Specimen]:
    """All of them by name; transformers is imported only now."""
    return _transformers_specimens() | _plain_specimens()


def _own_loss(output: Any) -> Tensor:
    loss: Tensor = output.loss
    return loss


def _tokens(num_samples: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(1, vocabulary, (num_samples, length))


def _transformers_specimens() -> dict[str, Specimen]:
    import transformers as hf

    hf.logging.set_verbosity_error()

    def width(size: SizeName) -> int:
        return 32 if size == "small" else 192

    def depth(size: SizeName) -> int:
        return 2 if size == "small" else 4

    def encoder(size: SizeName, dropout: float) -> dict[str, Any]:
        return {
            "hidden_size": width(size),
            "num_hidden_layers": depth(size),
            "num_attention_heads": 4,
            "intermediate_size": 4 * width(size),
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "num_labels": 3,
        }

    def text(size: SizeName) -> dict[str, Any]:
        return {"vocab_size": 101 if size == "small" else 2000, "max_position_embeddings": 130}

    def bert(size: SizeName, dropout: float) -> Any:
        return hf.BertForSequenceClassification(hf.BertConfig(**encoder(size, dropout), **text(size)))

    def roberta(size: SizeName, dropout: float) -> Any:
        return hf.RobertaForSequenceClassification(hf.RobertaConfig(**encoder(size, dropout), **text(size)))

    def gpt2(size: SizeName, dropout: float) -> Any:
        config = hf.GPT2Config(
            vocab_size=text(size)["vocab_size"], n_positions=130, n_embd=width(size), n_layer=depth(size), n_head=4,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
            bos_token_id=0, eos_token_id=0, loss_type="ForCausalLMLoss",
        )  # fmt: skip
        return hf.GPT2LMHeadModel(config)

    def vit(size: SizeName, dropout: float) -> Any:
        image = {"image_size": 16 if size == "small" else 48, "patch_size": 4 if size == "small" else 8}
        return hf.ViTForImageClassification(hf.ViTConfig(**encoder(size, dropout), **image))

    def resnet(size: SizeName, dropout: float) -> Any:
        wide = [8, 16, 16, 16] if size == "small" else [32, 64, 128, 256]
        depths = [1, 1, 1, 1] if size == "small" else [2, 2, 2, 2]
        config = hf.ResNetConfig(
            embedding_size=wide[0], hidden_sizes=wide, depths=depths, layer_type="basic", num_labels=3
        )
        return hf.ResNetForImageClassification(config)

    def convnext(size: SizeName, dropout: float) -> Any:
        wide = [8, 8, 16, 16] if size == "small" else [48, 96, 192, 384]
        config = hf.ConvNextConfig(hidden_sizes=wide, depths=[1, 1, 2, 1], drop_path_rate=dropout, num_labels=3)
        return hf.ConvNextForImageClassification(config)

    def t5(size: SizeName, dropout: float) -> Any:
        config = hf.T5Config(
            vocab_size=text(size)["vocab_size"], d_model=width(size), d_kv=width(size) // 4, d_ff=4 * width(size),
            num_layers=2 if size == "small" else 3, num_heads=4, dropout_rate=dropout, use_cache=False,
            decoder_start_token_id=0, pad_token_id=0,
        )  # fmt: skip
        return hf.T5ForConditionalGeneration(config)

    def length(size: SizeName) -> int:
        return 12 if size == "small" else 32

    def classified_text(size: SizeName, num_samples: int) -> Inputs:
        lengths = torch.arange(num_samples).remainder(3).unsqueeze(1)
        mask = (torch.arange(length(size)).unsqueeze(0) < length(size) - lengths).long()
        ids = _tokens(num_samples, length(size), text(size)["vocab_size"])
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (num_samples,))}

    def continued_text(size: SizeName, num_samples: int) -> Inputs:
        ids = _tokens(num_samples, length(size), text(size)["vocab_size"])
        return {"input_ids": ids, "labels": ids.clone()}

    def translated_text(size: SizeName, num_samples: int) -> Inputs:
        given = classified_text(size, num_samples)
        assert isinstance(given, dict)
        return given | {"labels": _tokens(num_samples, length(size), text(size)["vocab_size"])}

    def images(small: int, medium: int) -> Callable[[SizeName, int], Inputs]:
        def inputs(size: SizeName, num_samples: int) -> Inputs:
            side = small if size == "small" else medium
            return {
                "pixel_values": torch.randn(num_samples, 3, side, side),
                "labels": torch.randint(0, 3, (num_samples,)),
            }

        return inputs

    return {
        "bert": Specimen(bert, classified_text, _own_loss),
        "roberta": Specimen(roberta, classified_text, _own_loss),
        "gpt2": Specimen(gpt2, continued_text, _own_loss),
        "vit": Specimen(vit, images(16, 48), _own_loss),
        "resnet": Specimen(resnet, images(64, 64), _own_loss),
        "convnext": Specimen(convnext, images(32, 64), _own_loss),
        "t5": Specimen(t5, translated_text, _own_loss),
    }


class UNet(nn.Module):
    """Long skips from each level down to the same level up."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Module:
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True), nn.Dropout2d(dropout))

        self.down_1, self.down_2, self.down_3 = block(3, width), block(width, 2 * width), block(2 * width, 2 * width)
        self.middle = block(2 * width, 2 * width)
        self.up_3, self.up_2, self.up_1 = block(4 * width, 2 * width), block(4 * width, width), block(2 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down_1(x)
        second = self.down_2(F.max_pool2d(first, 2))
        third = self.down_3(F.max_pool2d(second, 2))
        h = self.middle(F.max_pool2d(third, 2))
        for up, skip in ((self.up_3, third), (self.up_2, second), (self.up_1, first)):
            h = up(torch.cat([F.interpolate(h, scale_factor=2.0), skip], dim=1))
        return self.out(h)  # type: ignore[no-any-return]


class LstmClassifier(nn.Module):
    """Sequences with the time dimension first, as nn.LSTM has it, so that the batch is a value's second dimension."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.forwards = nn.LSTM(width, width)
        self.both_ways = nn.LSTM(width, width, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(2 * width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h, _ = self.forwards(self.embedding(tokens.transpose(0, 1)))
        h, _ = self.both_ways(self.dropout(h))
        return self.out(h.mean(0))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Plain forward code around bare parameters, one of which every layer adds."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(6)])
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = F.dropout(torch.tanh(x @ weight + self.bias), self.dropout, self.training)
        return x


def _plain_specimens() -> dict[str, Specimen]:
    def images(size: SizeName, num_samples: int) -> Inputs:
        side = 16 if size == "small" else 64
        return (torch.randn(num_samples, 3, side, side),)

    def tokens(size: SizeName, num_samples: int) -> Inputs:
        return (torch.randint(0, 50, (num_samples, 9 if size == "small" else 48)),)

    def vectors(size: SizeName, num_samples: int) -> Inputs:
        return (torch.randn(num_samples, 16 if size == "small" else 1024),)

    def squares(output: Any) -> Tensor:
        values: Tensor = output
        return values.square().flatten(1).mean(1).mean()

    return {
        "unet": Specimen(lambda size, p: UNet(4 if size == "small" else 32, p), images, squares),
        "lstm": Specimen(lambda size, p: LstmClassifier(16 if size == "small" else 256, p), tokens, squares),
        "mlp": Specimen(lambda size, p: Perceptron(16 if size == "small" else 1024, p), vectors, squares),
    }
