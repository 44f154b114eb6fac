"""State by parameter names: divided anew over other optimizers, updates are bitwise those of a run without a break."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from zooid.core.errors import CheckpointError
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors, optimizer_tensors, parameter_of

Named = list[tuple[str, nn.Parameter]]
Build = Callable[[Any], torch.optim.Optimizer]

NUM_STEPS = 4
SHAPES = {"conv.weight": (3, 2, 2), "conv.bias": (3,), "last.weight": (4, 3), "scale": (), "unreached": (2,)}
SPLIT = ({"conv.bias", "last.weight"}, {"conv.weight", "scale", "unreached"})


class Counting(torch.optim.Optimizer):
    """Keeps numbers of every kind, a whole tensor and nothing at all, as optimizers of users may."""

    def __init__(self, named: Any) -> None:
        super().__init__(named, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(count=0, rate=0.1, turns=False, memory=None, seen=torch.zeros(2, dtype=torch.int64))
                assert isinstance(state["count"], int)
                assert isinstance(state["turns"], bool)
                state["count"] += 1
                state["rate"] /= 3
                state["turns"] = not state["turns"]
                state["seen"][0] += 1
                assert state["memory"] is None
                parameter.add_(parameter.grad, alpha=-state["rate"] * (2 if state["turns"] else 1))


def groups(named: Named, **options: Any) -> list[dict[str, Any]]:
    """Two groups, as people make them: no decay for vectors."""
    return [
        {"params": [(n, p) for n, p in named if p.dim() > 1], "weight_decay": 0.1, **options},
        {"params": [(n, p) for n, p in named if p.dim() <= 1], "weight_decay": 0.0, **options},
    ]


OPTIMIZERS: dict[str, Build] = {
    "SGD": lambda named: torch.optim.SGD(named, lr=0.1),
    "SGD with momentum": lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9, nesterov=True),
    "fused SGD": lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda named: torch.optim.Adam(named, lr=0.01),
    "Adam, amsgrad": lambda named: torch.optim.Adam(named, lr=0.01, amsgrad=True),
    "AdamW": lambda named: torch.optim.AdamW(named, lr=0.01),
    "AdamW in groups": lambda named: torch.optim.AdamW(groups(named), lr=0.01),
    "AdamW, foreach": lambda named: torch.optim.AdamW(named, lr=0.01, foreach=True),
    "AdamW, fused": lambda named: torch.optim.AdamW(named, lr=0.01, fused=True, amsgrad=True),
    "Adagrad": lambda named: torch.optim.Adagrad(named, lr=0.1, lr_decay=0.01),
    "RMSprop": lambda named: torch.optim.RMSprop(named, lr=0.01, momentum=0.9, centered=True),
    "Adafactor": lambda named: torch.optim.Adafactor(named, lr=0.1),
    "NAdam": lambda named: torch.optim.NAdam(named, lr=0.01),
    "numbers of all kinds": Counting,
}


def fresh() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def run(parameters: dict[str, nn.Parameter], optimizers: Iterable[torch.optim.Optimizer], steps: range) -> None:
    """Gradients that depend on the step and the parameter alone."""
    for step in steps:
        for name, parameter in parameters.items():
            if name != "unreached":
                generator = torch.Generator().manual_seed(hash_of(step, name))
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def hash_of(step: int, name: str) -> int:
    return step * 100 + list(SHAPES).index(name)


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_divided_over_two_optimizers_it_goes_on_bitwise(build: Build) -> None:
    parameters = fresh()
    optimizer = build(list(parameters.items()))
    run(parameters, [optimizer], range(NUM_STEPS))
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, parameters.items()).items()}
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    run(parameters, [optimizer], range(NUM_STEPS, 2 * NUM_STEPS))

    others = {name: nn.Parameter(weight) for name, weight in weights.items()}
    parts = []
    for names in SPLIT:
        named = [(name, others[name]) for name in sorted(names, reverse=True)]
        parts.append(build(named))
        own = {entry: tensor for entry, tensor in saved.items() if parameter_of(entry) in names}
        load_optimizer_tensors(parts[-1], named, own)
    run(others, parts, range(NUM_STEPS, 2 * NUM_STEPS))
    for name, parameter in parameters.items():
        assert torch.equal(parameter, others[name]), name
    assert build is OPTIMIZERS["Adagrad"] or not any(parameter_of(entry) == "unreached" for entry in saved)


def test_numbers_come_back_with_their_types() -> None:
    parameters = fresh()
    named = list(parameters.items())
    optimizer = Counting(named)
    run(parameters, [optimizer], range(1))
    saved = optimizer_tensors(optimizer, named)
    assert {entry for entry in saved if parameter_of(entry) == "scale"} == {
        "count(int):scale",
        "rate(float):scale",
        "turns(bool):scale",
        "memory(none):scale",
        "seen:scale",
    }
    other = Counting(named)
    load_optimizer_tensors(other, named, saved)
    state = other.state[parameters["scale"]]
    assert [type(state[key]) for key in ("count", "rate", "turns")] == [int, float, bool]
    assert (state["count"], state["rate"], state["turns"], state["memory"]) == (1, 0.1 / 3, True, None)


def test_a_parameter_without_state_goes_on_as_it_began() -> None:
    """Adagrad has state before its first step, and would fail without it."""
    parameters = fresh()
    named = list(parameters.items())
    optimizer = torch.optim.Adagrad(named, initial_accumulator_value=0.5)
    load_optimizer_tensors(optimizer, named, {})
    run(parameters, [optimizer], range(1))
    assert torch.equal(optimizer.state[parameters["unreached"]]["sum"], torch.full((2,), 0.5))


class TestRefused:
    def test_lists_of_an_optimizer_that_looks_at_all_parameters(self) -> None:
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.LBFGS([("weight", parameter)], lr=0.1, max_iter=2)

        def closure() -> float:
            optimizer.zero_grad()
            loss = (parameter**2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        with pytest.raises(CheckpointError, match=r"LBFGS keeps `\w+` of weight as a list; only dense tensors and"):
            optimizer_tensors(optimizer, [("weight", parameter)])

    def test_state_of_no_parameter(self) -> None:
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        optimizer.state["of all"]["count"] = 1  # type: ignore[index]
        with pytest.raises(CheckpointError, match=r"SGD keeps state for 'of all'"):
            optimizer_tensors(optimizer, [("weight", parameter)])

    def test_state_of_a_parameter_without_a_name(self) -> None:
        parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
        optimizer = torch.optim.Adam(parameters)
        parameters[1].grad = torch.ones(2)
        optimizer.step()
        with pytest.raises(CheckpointError, match=r"Adam keeps state for a parameter without a name"):
            optimizer_tensors(optimizer, [("first", parameters[0])])

    def test_state_for_parameters_that_the_model_or_the_optimizer_lacks(self) -> None:
        one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        saved = {"momentum_buffer:two": torch.ones(2)}
        optimizer = torch.optim.SGD([one], lr=0.1, momentum=0.9)
        with pytest.raises(CheckpointError, match=r"optimizer state for two, which the model does not have"):
            load_optimizer_tensors(optimizer, [("one", one)], saved)
        with pytest.raises(CheckpointError, match=r"optimizer state for two, which SGD was not given"):
            load_optimizer_tensors(optimizer, [("one", one), ("two", two)], saved)

    @pytest.mark.parametrize(
        ("entry", "message"),
        [("exp_avg", "is not the name of an entry"), ("step(rational):weight", "of a type that this zooid does not")],
    )
    def test_entries_of_another_form(self, entry: str, message: str) -> None:
        parameter = nn.Parameter(torch.ones(2))
        with pytest.raises(CheckpointError, match=message):
            load_optimizer_tensors(
                torch.optim.SGD([parameter], lr=0.1), [("weight", parameter)], {entry: torch.ones(2)}
            )
