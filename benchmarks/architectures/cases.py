"""An architecture as a job: the first of its heads that plain PyTorch can train, with samples that fit it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.architectures.agreement import grain_loss
from benchmarks.architectures.configurations import Level, shrunken
from benchmarks.architectures.heads import Head, heads_of
from benchmarks.architectures.inputs import Recipe, recipes
from zooid import Job
from zooid.layers import Batch, collate

NUM_SAMPLES = 8
SIZES = (2, 3)
"""Numbers of samples that a model has to be able to train on."""
MOST_PARAMETERS = 60_000_000
MOST_COUNTS = 3
"""How often a model may be asked how many tokens stand for an image."""
LEVELS: tuple[Level, ...] = ("narrow", "shallow")
DTYPES = (torch.float64, torch.float32)
"""Some operations, as those of mixtures of experts, exist in float32 only."""
NOISE = 0.02
"""Added to all initial weights: a layer that begins at zero would hide the gradients of those before it."""


class NotTrainable(Exception):
    """Plain PyTorch cannot train this architecture from a shrunken configuration; says what was tried."""


@dataclass(frozen=True)
class Case:
    """One architecture, ready to be trained."""

    architecture: str
    head: str
    recipe: Recipe
    dtype: torch.dtype
    job: Job


def case_of(architecture: str, config_class: Any) -> Case:
    """The first combination of head, size and inputs that trains."""
    failures: list[str] = []
    for head in heads_of(architecture, config_class):
        for level in LEVELS:
            try:
                config = shrunken(config_class, level)
                check_size(head, config)
            except Exception as error:  # noqa: BLE001 - whatever a configuration refuses
                failures.append(f"{head.class_name}, {level}: {in_short(error)}")
                continue
            case = _trained_case(architecture, head, config, failures)
            if case is not None:
                return case
    raise NotTrainable("; ".join(failures) or "no head of it computes a loss")


def check_size(head: Head, config: Any) -> None:
    with torch.device("meta"):
        model = head.load()(config)
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > MOST_PARAMETERS:
        raise NotTrainable(f"it has {size:,} parameters when shrunken, more than {MOST_PARAMETERS:,}")


def _trained_case(architecture: str, head: Head, config: Any, failures: list[str]) -> Case | None:
    for dtype in DTYPES:
        for recipe in recipes(head, config):
            complete, error = _completed(head, recipe, dtype)
            if complete is not None:
                return Case(architecture, head.class_name, complete, dtype, job_of(head, complete, dtype))
            failures.append(f"{head.class_name} with {'+'.join(recipe.inputs)} and {recipe.target}: {error}")
    return None


def _completed(head: Head, recipe: Recipe, dtype: torch.dtype) -> tuple[Recipe | None, str]:
    """The recipe with as many places for an image as the model asks for, if it trains; else why it does not."""
    for _ in range(MOST_COUNTS):
        try:
            _train_plainly(job_of(head, recipe, dtype))
        except Exception as error:  # noqa: BLE001 - whatever a model refuses
            number = _places_asked_for(error, recipe)
            if not number:
                return None, in_short(error)
            recipe = recipe.with_placeholders(number)
        else:
            return recipe, ""
    return None, "the number of places for images cannot be found"


def _places_asked_for(error: Exception, recipe: Recipe) -> int:
    """How many tokens of a sample have to stand for its image, from the library's own message; 0 where it is silent."""
    counts = re.search(r"tokens:?\s*(\d+).*?features:?\s*(\d+)", str(error), re.DOTALL)
    if counts is None:
        return 0
    num_tokens, num_features = int(counts[1]), int(counts[2])
    if num_tokens != num_features:
        return num_features // SIZES[0]
    width = int(recipe.config.get_text_config().hidden_size)  # some count the numbers in all features
    return num_features // SIZES[0] // width


def _train_plainly(job: Job) -> None:
    model, data = job.model(), job.data()
    for size in SIZES:
        batch = collate(data, range(size), job)
        model.zero_grad()
        total = grain_loss(job, model(**batch.kwargs), batch)
        torch.autograd.backward(total)
        if not bool(total.isfinite()):
            raise ValueError(f"the loss is {float(total)}")
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise ValueError("a gradient is not finite")
        if not any(bool(gradient.any()) for gradient in gradients):
            raise ValueError("no gradient reaches the parameters")


def job_of(head: Head, recipe: Recipe, dtype: torch.dtype) -> Job:
    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return Job(
        model=lambda: _build(head, recipe.config, dtype),
        loss=_LOSSES.get(recipe.target),
        data=lambda: [(tree_map(converted, recipe.sample(index)), None) for index in range(NUM_SAMPLES)],
        optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
        batch_size=4,
        epochs=1,
    )


def _build(head: Head, config: Any, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = head.load()(config).to(dtype).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(NOISE * torch.randn_like(parameter))
    return model


def _contrast(output: Any, _: Any) -> Tensor:
    """The loss of CLIP, which these models compute only when a flag asks for it."""
    scores = output.logits_per_image
    own = torch.arange(scores.shape[0])
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def _squares(output: Any, _: Any) -> Tensor:
    """For heads whose own loss takes a list of objects for each image, which a batch of tensors cannot hold."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.stack([leaf.square().mean() for leaf in leaves]).sum()


_LOSSES: dict[str, Callable[[Any, Any], Tensor]] = {"contrast": _contrast, "outside": _squares}


def in_short(error: BaseException) -> str:
    """The first line of a message, or two where the first announces the second."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text[:300]}"


def batches_of(job: Job) -> list[Batch]:
    """One grain of each size, of different samples."""
    data = job.data()
    return [collate(data, range(size, 2 * size), job) for size in SIZES]
