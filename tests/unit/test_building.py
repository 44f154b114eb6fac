"""A model is built without weights, whatever its constructor does, and then has the structure of the complete one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import zooid
from zooid.layers import build_model, build_stage, check_job, flatten_inputs, trace_job
from zooid.layers.jobs.model_builder import NeedsWeights, build_model_on_meta

WIDTH = 6


class Depths(nn.Module):
    """Reads values while it is constructed, as networks with widths from a formula do."""

    scale: Tensor

    def __init__(self, rates: Callable[[], list[float]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.rates = rates()
        self.register_buffer("scale", torch.tensor([self.rates]))
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Any:
        for block, rate in zip(self.blocks, self.rates, strict=True):
            x = x + rate * torch.tanh(block(x))
        return self.out(x) * self.scale.sum()


class Tied(Depths):
    """One parameter under two names, registered by hand, beside a recurrent layer, which keeps a list of its own."""

    def __init__(self) -> None:
        super().__init__(lambda: torch.linspace(0, 1, 3).tolist())
        shared = nn.Parameter(torch.ones(WIDTH))
        shared.register_hook(double)  # type: ignore[no-untyped-call]
        self.first = self.second = shared
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.memory(x[:, None] * self.first)[0][:, 0] * self.second)


class Constant(nn.Module):
    """A tensor that is neither a parameter nor a buffer, computed when the model is built."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.ramps = [torch.linspace(-1, 1, WIDTH)]

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.first(x)) * self.ramps[0])


def double(gradient: Tensor) -> Tensor:
    return 2 * gradient


def by_tolist() -> nn.Module:
    return Depths(lambda: torch.linspace(0, 1, 3).tolist())


def by_item() -> nn.Module:
    return Depths(lambda: [value.item() for value in torch.arange(3) / 3])


def by_numpy() -> nn.Module:
    return Depths(lambda: [float(value) for value in (torch.arange(3) / 3).numpy()])


def by_numpys_randomness() -> nn.Module:
    return Depths(lambda: np.random.rand(3).tolist())


def by_chance() -> nn.Module:
    return Depths(lambda: torch.rand(3).tolist())


def loaded() -> nn.Module:
    """The state dict of another model, copied."""
    model = Depths(lambda: [0.1, 0.2, 0.3])
    with torch.device("cpu"):
        model.load_state_dict(Depths(lambda: [0.1, 0.2, 0.3]).state_dict())
    return model


def assigned() -> nn.Module:
    model = Depths(lambda: [0.1, 0.2, 0.3])
    with torch.device("cpu"):
        model.load_state_dict(Depths(lambda: [0.1, 0.2, 0.3]).state_dict(), assign=True)
    return model


def job_of(model: Callable[[], nn.Module], **fields: Any) -> zooid.Job:
    settings: dict[str, Any] = {
        "loss": F.cross_entropy,
        "data": lambda: TensorDataset(torch.randn(8, WIDTH), torch.arange(8) % 3),
        "optimizer": lambda named: torch.optim.SGD(named, lr=0.1),
        "batch_size": 4,
        "epochs": 1,
    }
    return zooid.Job(model=model, **settings | fields)


def outline(model: nn.Module) -> list[tuple[str, torch.Size, torch.dtype]]:
    """Names, shapes and types; parameters that are tied come once."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor.shape, tensor.dtype) for name, tensor in named]


def devices(model: nn.Module) -> set[str]:
    return {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}


@pytest.mark.parametrize("model", [by_tolist, by_item, by_numpy, by_numpys_randomness, loaded, assigned, Tied])
def test_a_model_without_weights_is_the_complete_one_but_for_the_values(model: Callable[[], nn.Module]) -> None:
    job = job_of(model)
    complete, empty = build_model(job), build_model_on_meta(job)
    assert devices(complete) == {"cpu"}
    assert devices(empty) == {"meta"}
    assert outline(empty) == outline(complete)
    assert getattr(empty, "rates") == getattr(complete, "rates")  # noqa: B009  # not an attribute of every module


@pytest.mark.parametrize("model", [by_tolist, by_numpys_randomness, by_chance, loaded, Tied, Constant])
def test_a_stage_is_the_model_whatever_its_constructor_reads(model: Callable[[], nn.Module]) -> None:
    checked = check_job(job_of(model))
    layered = trace_job(checked.job, checked.example)
    tensors = {**dict(checked.model.named_parameters()), **dict(checked.model.named_buffers())}
    stage = build_stage(layered, 0, layered.num_layers, tensors, torch.device("cpu"))
    values = stage.module(*flatten_inputs(checked.example))
    torch.testing.assert_close(stage.model_output(values), checked.model(*checked.example.args), rtol=0, atol=0)


def test_tied_parameters_and_hooks_outlive_their_values() -> None:
    empty = build_model_on_meta(job_of(Tied))
    assert empty.get_parameter("first") is empty.get_parameter("second")
    assert list((empty.get_parameter("first")._backward_hooks or {}).values()) == [double]
    memory = empty.get_submodule("memory")
    assert {tensor.device.type for tensor in memory._flat_weights} == {"meta"}  # type: ignore[union-attr]


def test_tensors_that_are_no_state_keep_their_values() -> None:
    job = job_of(Constant)
    complete, empty = build_model(job), build_model_on_meta(job)
    assert devices(empty) == {"meta"}
    torch.testing.assert_close(vars(empty)["ramps"], vars(complete)["ramps"], rtol=0, atol=0)


def test_a_structure_drawn_at_random_is_not_guessed() -> None:
    """Without initialising weights first, other numbers would be drawn."""
    with pytest.raises(NeedsWeights, match="draws random numbers"):
        build_model_on_meta(job_of(by_chance))


def test_a_pretrained_model_is_built_without_weights(tmp_path: Path) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=31, n_positions=16)
    GPT2LMHeadModel(config).double().save_pretrained(tmp_path, max_shard_size="4KB")
    job = job_of(lambda: GPT2LMHeadModel.from_pretrained(tmp_path))
    complete, empty = build_model(job), build_model_on_meta(job)
    assert devices(empty) == {"meta"}
    assert outline(empty) == outline(complete)
    assert empty.get_parameter("lm_head.weight") is empty.get_parameter("transformer.wte.weight")


def test_names_that_are_tied_if_their_weights_are_equal_are_not_guessed(tmp_path: Path) -> None:
    """A checkpoint that holds both names of a tied parameter, as older ones do."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=31, n_positions=16))
    model.save_pretrained(tmp_path)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    job = job_of(lambda: GPT2LMHeadModel.from_pretrained(tmp_path))
    complete = build_model(job)
    assert complete.get_parameter("lm_head.weight") is complete.get_parameter("transformer.wte.weight")
    with pytest.raises(NeedsWeights, match="their values decide which are tied"):
        build_model_on_meta(job)
