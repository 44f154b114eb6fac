"""The models: three linear layers each, and one thing that a trace may lose in or around the middle one."""

# mypy: disable-error-code="no-untyped-call, no-any-return, override, index, operator, arg-type"

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WIDTH = 6
CLASSES = 3


class Plain(nn.Module):
    """Nothing that a trace may lose: what the others are built from."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH) if middle is None else middle
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


# Backwards of one's own


class StraightThrough(Function):
    """Rounds, and passes gradients on as if it had not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Reverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return -ctx.strength * gradient, None


class Halves(Function):
    """Two results from one input, and gradients that are not those of the forward."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 0.5, x * 0.25

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return first * x.sign() + 3 * second


class Scaled(Function):
    """A weight among its inputs, with a gradient that is not the true one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient * weight, 2 * (gradient * x).sum(0)


reverse = Reverse.apply


class RoundsInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return StraightThrough.apply(self.inner(x))


class OwnBackward(Plain):
    def __init__(self) -> None:
        super().__init__(RoundsInside())


class ReversedGradient(Plain):
    """The function is bound before anybody can look at it, and called by the model itself."""

    def forward(self, x: Tensor) -> Any:
        return self.last(reverse(self.middle(torch.tanh(self.first(x))), 0.5))


class TwoResults(Plain):
    def forward(self, x: Tensor) -> Any:
        left, right = Halves.apply(self.middle(self.first(x)))
        return self.last(left - right)


class OwnWeight(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Any:
        return self.last(Scaled.apply(self.middle(self.first(x)), self.weight))


class InputGradient(Plain):
    """Differentiates inside its forward, as models of physics do."""

    def __init__(self) -> None:
        super().__init__(Differentiates())


class Differentiates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            if not x.requires_grad:
                x = x.detach().requires_grad_()
            total = self.energy(x).square().sum()
            (force,) = torch.autograd.grad(total, x, create_graph=True)
        return force


# Hooks


class BackwardHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.register_full_backward_hook(lambda module, given, found: (given[0] * 2,))


class BackwardPreHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.register_full_backward_pre_hook(lambda module, found: (found[0] * 0.5,))


class ParameterHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.first.weight.register_hook(lambda gradient: gradient * 0.1)


class ClampingHook(Plain):
    """Not linear: what it does to the gradient of a batch is not the sum of what it does to those of grains."""

    def __init__(self) -> None:
        super().__init__()
        self.last.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


class AccumulationHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.weight.register_post_accumulate_grad_hook(_triple)


def _triple(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(3)


class HooksTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.inner(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 3)
        return h


class TensorHook(Plain):
    def __init__(self) -> None:
        super().__init__(HooksTensor())


class TensorHookOfModel(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.middle(torch.tanh(self.first(x)))
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 3)
        return self.last(h)


class ForwardHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.register_forward_hook(lambda module, given, found: found * 2 + given[0])


class ForwardPreHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.register_forward_pre_hook(lambda module, given: (given[0] - 0.5,))


class ForwardHookWithGradient(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.register_forward_hook(_hook_output)


def _hook_output(module: nn.Module, given: Any, found: Tensor) -> None:
    if found.requires_grad:
        found.register_hook(lambda gradient: gradient * 0.25)


# Recomputation


class Recomputed(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.last(checkpoint(self.middle, torch.tanh(self.first(x)), use_reentrant=False))


class RecomputedReentrant(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.last(checkpoint(self.middle, torch.tanh(self.first(x)), use_reentrant=True))


class RecomputesItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Any:
        return checkpoint(lambda value: torch.tanh(self.inner(value)), x, use_reentrant=False)


class RecomputedDropout(Plain):
    def __init__(self) -> None:
        super().__init__(RecomputesItself())


class RecomputedInSegments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.last(checkpoint_sequential(self.body, 2, self.first(x), use_reentrant=False))


class RecomputingLayer(nn.Module):
    """Recomputes around its own call, as layers of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            return checkpoint(super().__call__, *args, use_reentrant=False, **kwargs)
        return super().__call__(*args, **kwargs)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return torch.tanh(self.inner(x)) * scale


class RecomputedCall(Plain):
    def __init__(self) -> None:
        super().__init__(RecomputingLayer())

    def forward(self, x: Tensor) -> Any:
        return self.last(self.middle(self.first(x), scale=2.0))


# State and randomness of Python


class Counter(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)


class Remembers(Plain):
    """Adds what it has seen last to what it sees now."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.middle(self.first(x)))
        seen = h if self.memory is None else h + self.memory
        self.memory = h.detach().mean(0)
        return self.last(seen)


class Collects(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Any:
        self.seen.append(len(x))
        return super().forward(x) / len(self.seen)


class Jitters(nn.Module):
    def __init__(self, draw: str) -> None:
        super().__init__()
        self.draw = draw
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) * (random.random() if self.draw == "python" else np.random.rand())


class PythonRandom(Plain):
    def __init__(self) -> None:
        super().__init__(Jitters("python"))


class NumpyRandom(Plain):
    def __init__(self) -> None:
        super().__init__(Jitters("numpy"))


class PythonRandomOfModel(Plain):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * random.choice([1.0, 2.0, 3.0])


class Dropout(Plain):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4)))


class Skips(nn.Module):
    """Skips its layers at random."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < self.probability:
                continue
            x = torch.tanh(layer(x))
        return x


class SkippedLayers(Plain):
    def __init__(self) -> None:
        super().__init__(Skips(0.4))


class NeverSkippedLayers(Plain):
    def __init__(self) -> None:
        super().__init__(Skips(0.0))


class StochasticDepth(Plain):
    """Drops the branch of single samples."""

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        if self.training:
            keep = torch.bernoulli(torch.full((x.shape[0], 1), 0.5, dtype=h.dtype))
            return self.last(h + keep * self.middle(h) / 0.5)
        return self.last(h + self.middle(h))


# Values, sizes and branches


class TensorMadeInForward(Plain):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=x.dtype))


class TensorAttribute(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.linspace(1, 2, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return super().forward(x * self.factor)


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.left(x) if float(x.detach().sum()) > 0 else self.right(x)


class Branches(Plain):
    def __init__(self) -> None:
        super().__init__(Chooses())


class Ponders(nn.Module):
    """As many rounds as the values ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rounds = 0
        while rounds < 4 and float(x.detach().abs().max()) > 0.3:
            x = torch.tanh(self.inner(x)) * 0.7
            rounds += 1
        return x


class Loops(Plain):
    def __init__(self) -> None:
        super().__init__(Ponders())


class BranchOfModel(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        return self.last(self.middle(h) if float(h.detach().sum()) > 0 else h)


class ChecksValues(Plain):
    """Refuses bad values: a branch of which one way raises."""

    def forward(self, x: Tensor) -> Any:
        if x.abs().max() > 1e6:
            raise ValueError("inputs are too large")
        return super().forward(x)


class ManySamples(Plain):
    """Takes another course from five samples on."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) if x.shape[0] < 5 else self.last(self.first(x))


class FixedSamples(Plain):
    """Looks at the number of samples as a plain number."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) / float(int(x.shape[0]))


class Experts(nn.Module):
    """Sends every sample to one of its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(1).max(1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = torch.where(chosen == number)[0]
            if len(at) == 0:
                continue
            result.index_add_(0, at, expert(x[at]) * weights[at, None])
        return result


class MixtureOfExperts(Plain):
    def __init__(self) -> None:
        super().__init__(Experts())


class Ragged(Plain):
    """Splits its samples by numbers that depend on values, in the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        order = h.detach().sum(1).argsort()
        num_low = int((h.detach().sum(1) < 0).sum())
        low, high = h[order].split([num_low, h.shape[0] - num_low])
        mixed = torch.cat([self.middle(low), self.other(high)])
        return self.last(torch.tanh(mixed[order.argsort()]))


class DenseMixture(Plain):
    """Every expert on every sample."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 3))
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        gates = self.middle(h).softmax(-1)
        return self.last(torch.stack([expert(h) for expert in self.experts], -1).mul(gates[:, None]).sum(-1))


class Quantizes(nn.Module):
    """A codebook that follows what it sees, in buffers."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("codes", torch.linspace(-1, 1, 4)[:, None].repeat(1, WIDTH))

    def forward(self, x: Tensor) -> Any:
        h = self.inner(x)
        with torch.no_grad():
            nearest = torch.cdist(h, self.codes).argmin(1)
            chosen = F.one_hot(nearest, 4).to(h.dtype)
            if self.training:
                self.codes.mul_(0.9).add_(0.1 * chosen.t() @ h / (1 + chosen.sum(0))[:, None])
        return h + (chosen @ self.codes - h).detach()


class MovingCodebook(Plain):
    def __init__(self) -> None:
        super().__init__(Quantizes())


# Weights that are computed


class SpectralNorm(Plain):
    def __init__(self) -> None:
        super().__init__(spectral_norm(nn.Linear(WIDTH, WIDTH)))


class SpectralParametrization(Plain):
    def __init__(self) -> None:
        super().__init__(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))


class WeightNorm(Plain):
    def __init__(self) -> None:
        super().__init__(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))


class Orthogonal(Plain):
    def __init__(self) -> None:
        super().__init__(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)))


class TiedWeights(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.middle.weight = self.first.weight


class CalledTwice(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        return self.last(self.middle(torch.tanh(self.middle(torch.tanh(h)))))


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)


class Stops(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.middle(torch.tanh(self.first(x)))
        return self.last(h.detach() + torch.tanh(h))


class WritesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        x.mul_(2)
        return StraightThrough.apply(self.inner(x))


class InPlace(Plain):
    """A module with a backward of its own that writes to its input, which is used again afterwards."""

    def __init__(self) -> None:
        super().__init__(WritesInput())

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x)) * 1.0
        return self.last(self.middle(h) + h)


class BatchNorm(Plain):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))


class Recurrent(Plain):
    def __init__(self) -> None:
        super().__init__(nn.LSTM(1, WIDTH, batch_first=True))

    def forward(self, x: Tensor) -> Any:
        _, (hidden, _) = self.middle(torch.tanh(self.first(x)).unsqueeze(-1))
        return self.last(hidden[-1])


class Autocasts(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.first(x).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.linear(h, self.middle.weight.float())
        return self.last(h.to(x.dtype))


class Fourier(Plain):
    def forward(self, x: Tensor) -> Any:
        mixed = torch.fft.irfft(torch.fft.rfft(self.first(x)) * torch.view_as_complex(self._phases()), n=WIDTH)
        return self.last(self.middle(mixed))

    def _phases(self) -> Tensor:
        angles = torch.arange(WIDTH // 2 + 1, dtype=self.first.weight.dtype)
        return torch.stack([angles.cos(), angles.sin()], -1)


class Mapped(Plain):
    def forward(self, x: Tensor) -> Any:
        return torch.vmap(super().forward)(x)


class Scripted(Plain):
    def __init__(self) -> None:
        super().__init__(torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())))


# Shapes of inputs and outputs


class DictOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return {"logits": self.last(torch.tanh(self.middle(h))), "hidden": [h], "name": "dict", "none": None}


class TupleOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(h))), h


@dataclass
class Answer:
    """Nothing that pytrees know."""

    logits: Tensor
    hidden: Tensor


class ObjectOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.first(x))
        return Answer(self.last(torch.tanh(self.middle(h))), h)


class Opinion:
    """Nothing that can be looked into."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class OpinionOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        return Opinion(super().forward(x))


class OwnLoss(Plain):
    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = super().forward(x)
        return _WithLoss(F.cross_entropy(logits, labels))


@dataclass
class _WithLoss:
    loss: Tensor


class PassesObjects(Plain):
    """What its modules pass to each other is no tensor."""

    def __init__(self) -> None:
        super().__init__(TakesObject())

    def forward(self, x: Tensor) -> Any:
        return self.last(self.middle(Answer(torch.tanh(self.first(x)), x)))


class TakesObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, answer: Answer) -> Any:
        return StraightThrough.apply(self.inner(answer.logits) + answer.hidden)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 8)
        self.body = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        tokens = self.first(x.unsqueeze(-1))
        mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=tokens.dtype)
        return self.last(self.body(tokens, tokens[:, :3], tgt_mask=mask).mean(1))


class Squeezes(Plain):
    """Drops every dimension of size 1, that of a single sample included."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).squeeze()


class Compares(Plain):
    """Embeddings, for a loss that compares the samples of a batch with each other."""
