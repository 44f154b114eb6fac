"""Backwards from given gradients are those of PyTorch, without what it imports for them."""

import subprocess
import sys

import torch

from zooid.worker.step.given_gradients import backward_from

WITHOUT_SYMPY = """
import sys
import torch
from zooid.worker.step.given_gradients import backward_from

weight = torch.ones(3, requires_grad=True)
backward_from([2 * weight], [torch.ones(3)])
assert weight.grad.tolist() == [2.0] * 3
print("sympy" in sys.modules)
"""


def two_outputs(weight: torch.Tensor) -> list[torch.Tensor]:
    """Two values of which one is computed from the other, in two kinds of numbers."""
    first = torch.sin(weight)
    return [first, (first * weight).sum(dim=0).to(torch.float32)]


def test_gradients_are_those_of_pytorch() -> None:
    values = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given = [torch.full((4, 5), 0.3, dtype=torch.float64), torch.arange(5, dtype=torch.float32)]
    own, reference = (values.clone().requires_grad_() for _ in range(2))
    for _ in range(2):  # gradients add up
        backward_from(two_outputs(own), given)
        torch.autograd.backward(two_outputs(reference), given)
    assert own.grad is not None
    assert reference.grad is not None
    assert torch.equal(own.grad, reference.grad)


def test_no_outputs_need_no_backward() -> None:
    backward_from([], [])


def test_sympy_is_not_imported() -> None:
    told = subprocess.run([sys.executable, "-c", WITHOUT_SYMPY], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
