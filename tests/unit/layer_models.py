"""Small models that each do one thing which cutting into layers has to survive."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Plain forward code around parameters, without a Sequential."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(5, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = F.gelu(self.second(h)) * 0.5
        return F.log_softmax(self.third(h), dim=1)


class ConvNet(nn.Module):
    """Batch statistics, in-place activations and, where asked for, dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Dropout2d(dropout),
            nn.Conv2d(4, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Dropout(dropout))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.head(self.body(x)))  # type: ignore[no-any-return]


class DroppingConvNet(ConvNet):
    def __init__(self) -> None:
        super().__init__(dropout=0.4)


class Skip(nn.Module):
    """The first layer's result, and the input itself, are used again by the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        first = torch.sigmoid(self.layers[0](x))
        h = torch.relu_(self.layers[1](first))
        h = torch.tanh(self.layers[2](h))
        return self.layers[3](h + first) - x  # type: ignore[no-any-return]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(5, 4)
        self.right = nn.Linear(2, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out(torch.tanh(self.left(left)) * self.right(right))  # type: ignore[no-any-return]


class DictOutput(nn.Module):
    """More than one output, one of them from an early layer, one no tensor at all."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(5, 4)
        self.decode = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = torch.tanh(self.encode(x))
        return {"logits": self.decode(hidden), "hidden": hidden, "num_classes": 3, "cache": None}


class Scored(NamedTuple):
    logits: Tensor
    loss: Tensor


@dataclass
class Answer:
    logits: Tensor
    loss: Tensor


torch.export.register_dataclass(Answer, serialized_type_name="tests.layer_models.Answer")


class OwnLoss(nn.Module):
    """Computes its loss itself, from labels among its inputs, and returns it as an attribute."""

    def __init__(self, kind: type[Scored] | type[Answer] = Scored) -> None:
        super().__init__()
        self.kind = kind
        self.encode = nn.Linear(5, 4)
        self.decode = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Scored | Answer:
        logits = self.decode(torch.tanh(self.encode(x)))
        return self.kind(logits=logits, loss=F.cross_entropy(logits, labels))


class OwnLossInDataclass(OwnLoss):
    def __init__(self) -> None:
        super().__init__(Answer)


class Tied(nn.Module):
    """A language model whose head is its embedding, with layers before, between and after."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.mixer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.out = nn.Linear(11, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = torch.tanh(self.mixer(self.embedding(tokens)))
        return self.out(torch.tanh(self.head(h)).mean(1))  # type: ignore[no-any-return]


class Leftovers(nn.Module):
    """A parameter and a buffer that nothing uses, and a buffer that a state dict leaves out but a layer needs."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 3)
        self.spare = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * self.scale)  # type: ignore[no-any-return]


class Frozen(Perceptron):
    """A backbone that must not be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Attention(nn.Module):
    """Sizes are read from the input and used to reshape in every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(4, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.queries(x).view(batch, length, 2, 4).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.25, is_causal=True)
        joined = mixed.transpose(1, 2).reshape(batch, length, 8)
        return self.out(torch.tanh(self.mix(joined)).mean(1))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Torch's own encoder: every block reads sizes from its input."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.body = nn.TransformerEncoder(block, 3)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x).mean(1))  # type: ignore[no-any-return]


class WritesInPlace(nn.Module):
    """Changes a value in place, in another layer than the one that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        doubled = h * 2
        h.relu_()
        return self.second(h) + doubled  # type: ignore[no-any-return]


class WritesThroughSlice(nn.Module):
    """Changes a part of a value in place, in another layer than the one that made the value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.second = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        doubled = h * 2
        h[:, :2].mul_(0.5)
        return self.second(h) + doubled[:, :3]  # type: ignore[no-any-return]


class WritesThroughCrossingView(nn.Module):
    """A value and a view of it both travel on; what is written into the view must be seen in the value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 3)
        self.bias = nn.Parameter(torch.full((3,), 0.25))
        self.factor = nn.Parameter(torch.full((3,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        view = h[:, :2]
        shifted = (h + self.bias) + view.sum(1, keepdim=True)
        scaled = shifted * self.factor
        view.mul_(0.5)
        return h + scaled  # type: ignore[no-any-return]


class TensorAttribute(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 3)
        self.second = nn.Linear(3, 3)
        self.factor = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.factor)  # type: ignore[no-any-return]


class TensorLiteral(TensorAttribute):
    """A tensor that the forward code itself makes from numbers."""

    def forward(self, x: Tensor) -> Tensor:
        factor = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        return self.second(self.first(x) * factor)  # type: ignore[no-any-return]


class Choosy(nn.Module):
    """A block whose code depends on values, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(5, 5)
        self.wide = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.wide if float(x.detach().sum()) > 0 else self.narrow
        return self.norm(torch.tanh(chosen(x)))  # type: ignore[no-any-return]


class ChoosySequence(nn.Sequential):
    """Such blocks in a row."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 5), Choosy(), nn.Sequential(Choosy(), nn.Dropout(0.0)), nn.Linear(5, 3))


class ChoosyBlocks(nn.Module):
    """Such blocks called by plain code, with a skip, a parameter of the model's own, a size and an unused argument."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.ones(5))
        self.blocks = nn.ModuleList([Choosy() for _ in range(3)])
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        first = x * self.offset
        h = first
        for block in self.blocks:
            h = block(h)
        if mask is not None:
            h = h * mask
        return self.out((h + first).reshape(x.size(0), -1))  # type: ignore[no-any-return]


class ChoosyThroughout(Choosy):
    """Code that depends on values in the model's own forward."""
