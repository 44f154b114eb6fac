"""Every model is trained exactly, as stages or as one stage; none is silently different."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.fidelity.cases import CASES, Case
from tests.fidelity.training import largest_difference, train_in_stages, train_plainly
from tests.rebuilt import assert_same_bits, through_bytes
from zooid.layers import (
    Batch,
    LayeredModel,
    ParameterHooks,
    Stage,
    build_model,
    build_stage,
    check_data,
    check_job,
    collate,
    faithful_layers,
    trace,
)
from zooid.layers.tracing.watch import Watch

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

TOLERANCE = 1e-9
RECORDED = frozenset(
    [
        "Plain",
        "ForwardHook",
        "ForwardPreHook",
        "Dropout",
        "NeverSkippedLayers",
        "StochasticDepth",
        "TensorMadeInForward",
        "TensorAttribute",
        "ChecksValues",
        "DenseMixture",
        "SpectralNorm",
        "SpectralParametrization",
        "WeightNorm",
        "Orthogonal",
        "TiedWeights",
        "CalledTwice",
        "Frozen",
        "Stops",
        "BatchNorm",
        "Recurrent",
        "Autocasts",
        "Fourier",
        "DictOutput",
        "TupleOutput",
        "ObjectOutput",
        "OwnLoss",
        "Squeezes",
    ]
)
"""Names of the models that hold no Python code, so that members rebuild them from a record."""


def layers_of(case: Case) -> LayeredModel:
    return faithful_layers(check_job(case.job()))


def differences(case: Case, found: LayeredModel) -> dict[str, float]:
    """By layout, the largest difference between a weight and the plain loop's."""
    in_stages = (1, 2) if case.is_repeatable and found.num_layers > 1 else (1, 1)
    layouts = [in_stages, (2, 1)] if case.is_repeatable else [in_stages]
    wanted = train_plainly(case.job(), grain_by_grain=case.grain_by_grain)
    return {
        f"{num_replicas}x{num_stages}": largest_difference(
            train_in_stages(case.job(), found, num_replicas, num_stages), wanted
        )
        for num_replicas, num_stages in layouts
    }


def test_there_are_at_least_forty_models() -> None:
    assert len({case.name for case in CASES}) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_equal_those_of_a_plain_loop(case: Case) -> None:
    found = layers_of(case)
    assert (found.num_layers > 1) == (case.outcome == "cut"), found.why_whole
    assert case.why in found.why_whole
    for layout, difference in differences(case, found).items():
        assert difference <= TOLERANCE, layout
    rebuilt = through_bytes(found)
    assert (rebuilt is not None) == (case.name in RECORDED)
    if rebuilt is not None:
        job = case.job()
        model = build_model(job)
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        assert_same_bits(found, rebuilt, state, collate(check_data(job), range(3), job))


def saved_bytes(stage: Stage, inputs: Tensor) -> int:
    """Bytes that autograd keeps of a forward, parameters left out."""
    parameters = {parameter.data_ptr() for parameter in stage.module.parameters()}
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if tensor.data_ptr() in parameters else tensor.numel() * tensor.element_size()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        stage.run(inputs)
    return kept


class Deep(nn.Module):
    """Ten activations, of which recomputation keeps none."""

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(*(part for _ in range(10) for part in (nn.Linear(6, 6), nn.Tanh())))
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False) if self.recomputes else self.body(x)  # type: ignore[no-any-return]


def test_recomputation_saves_the_memory_that_it_saves_in_the_model() -> None:
    example = Batch((torch.randn(2, 6),), {}, None, 2)
    kept = {}
    for recomputes in (False, True):
        model = Deep(recomputes=recomputes)
        layered = trace(model, example)
        stage = build_stage(layered, 0, layered.num_layers, dict(model.named_parameters()), "cpu")
        kept[recomputes] = saved_bytes(stage, torch.randn(64, 6))
    assert kept[False] >= 10 * 64 * 6 * 4
    assert kept[True] <= 2 * 64 * 6 * 4


def test_a_job_may_ask_for_the_untouched_model() -> None:
    case = next(case for case in CASES if case.name == "Plain")
    found = faithful_layers(check_job(dataclasses.replace(case.job(), whole=True)))
    assert found.num_layers == 1
    assert found.why_whole == "job.whole is True"
    assert max(differences(case, found).values()) <= TOLERANCE


@contextmanager
def nothing_kept() -> Iterator[None]:
    """The trace as it would be if nobody looked for what it loses."""
    with ExitStack() as mutations:
        mutations.enter_context(patch.object(Watch, "watching", lambda watch: nullcontext()))
        mutations.enter_context(patch("zooid.layers.tracing.tracer.hooked_modules", lambda model: {}))
        mutations.enter_context(patch("zooid.layers.tracing.tracer.parameter_hooks", lambda model: ParameterHooks()))
        yield


@contextmanager
def nothing_compared() -> Iterator[None]:
    """No comparison with the untouched model, and no look at its Python state."""
    with ExitStack() as mutations:
        mutations.enter_context(patch("zooid.layers.stages.faithful_layers.find_difference", lambda *args: None))
        mutations.enter_context(patch("zooid.layers.stages.faithful_layers.changed_attribute", lambda *args: ""))
        yield


LOST = ("OwnBackward", "ReversedGradient", "BackwardHook", "ParameterHook", "TensorHook", "ForwardHookWithGradient")
OTHERS = ("TwoResults", "OwnWeight", "BackwardPreHook", "ClampingHook", "AccumulationHook", "Counter", "Remembers")


def ends_wrong(case: Case) -> bool:
    return max(differences(case, layers_of(case)).values()) > TOLERANCE


@pytest.mark.parametrize("case", [case for case in CASES if case.name in LOST], ids=lambda case: case.name)
def test_the_comparison_alone_finds_what_a_trace_has_lost(case: Case) -> None:
    with nothing_kept():
        found = layers_of(case)
    assert "the gradient of" in found.why_whole
    assert max(differences(case, found).values()) <= TOLERANCE


def test_without_looking_and_comparing_at_least_ten_models_end_wrong() -> None:
    cases = [case for case in CASES if case.name in (*LOST, *OTHERS)]
    with nothing_kept(), nothing_compared():
        wrong = [case.name for case in cases if ends_wrong(case)]
    assert len(wrong) >= 10, wrong
