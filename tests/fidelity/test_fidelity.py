"""Every model is trained exactly, as stages or as one stage, or refused with the cause; none is silently different."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import pytest

from tests.fidelity.cases import CASES, Case
from tests.fidelity.training import largest_difference, train_in_stages, train_plainly
from zooid.core.errors import ZooidError
from zooid.layers import LayeredModel, ParameterHooks, check_job, faithful_layers
from zooid.layers.watch import Watch

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

TOLERANCE = 1e-9
REFUSED = [case for case in CASES if case.outcome == "refused"]
TRAINED = [case for case in CASES if case.outcome != "refused"]


def layers_of(case: Case) -> LayeredModel:
    return faithful_layers(check_job(case.job()))


def differences(case: Case, found: LayeredModel) -> dict[str, float]:
    """By layout, the largest difference between a weight and the plain loop's."""
    layouts = [(1, 1), (1, 2), (2, 1)] if case.is_repeatable else [(1, 1)]
    return {
        f"{num_replicas}x{num_stages}": largest_difference(
            train_in_stages(case.job(), found, num_replicas, num_stages),
            train_plainly(case.job(), grain_by_grain=case.grain_by_grain, num_replicas=num_replicas),
        )
        for num_replicas, num_stages in layouts
        if num_stages <= found.num_layers
    }


def test_there_are_at_least_forty_models() -> None:
    assert len({case.name for case in CASES}) >= 40


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_weights_equal_those_of_a_plain_loop(case: Case) -> None:
    found = layers_of(case)
    assert (found.num_layers > 1) == (case.outcome == "cut"), found.why_whole
    assert case.why in found.why_whole
    for layout, difference in differences(case, found).items():
        assert difference <= TOLERANCE, layout


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_be_trained_exactly_is_refused_with_the_cause(case: Case) -> None:
    with pytest.raises(ZooidError, match=case.why):
        layers_of(case)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """The trace as it would be if nobody looked for what it loses."""
    with ExitStack() as mutations:
        mutations.enter_context(patch.object(Watch, "watching", lambda watch: nullcontext()))
        mutations.enter_context(patch("zooid.layers.tracing.hooked_modules", lambda model: {}))
        mutations.enter_context(patch("zooid.layers.tracing.parameter_hooks", lambda model: ParameterHooks()))
        yield


@contextmanager
def nothing_compared() -> Iterator[None]:
    """No comparison with the untouched model, and no look at its Python state."""
    with ExitStack() as mutations:
        mutations.enter_context(patch("zooid.layers.faithful.find_difference", lambda *args: None))
        mutations.enter_context(patch("zooid.layers.faithful.changed_attribute", lambda *args: ""))
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
