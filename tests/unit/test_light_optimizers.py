"""Optimizers without a compiler compute what torch's own do, and torch's own are back as soon as there is one."""

import functools
import subprocess
import sys
from typing import Any

import pytest
from torch import nn
from torch.optim import Optimizer

from zooid.worker.state.light_optimizers import _without_compiler

ALL_OPTIMIZERS = """
import sys, torch
from zooid.worker.state.light_optimizers import lighten_optimizers

def kinds():
    classes = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    leaves = (torch.optim.Optimizer, torch.optim.LBFGS)
    return [kind for kind in classes if issubclass(kind, torch.optim.Optimizer) and kind not in leaves]

def stepped(kind, closure):
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(3, 3))
    optimizer = kind([parameter], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        gradient = torch.randn(3, 3)
        parameter.grad = gradient.to_sparse() if kind is torch.optim.SparseAdam else gradient
        optimizer.step(*closure)
        assert torch.is_grad_enabled()
        scheduler.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))]})
    return parameter.detach()

lighten_optimizers()
lighten_optimizers()
light = {kind: stepped(kind, (lambda: torch.ones(()),)) for kind in kinds()}
assert "torch._dynamo" not in sys.modules, "an optimizer has imported the compiler"
import torch._dynamo
calls = []
original = torch._dynamo.graph_break
torch._dynamo.graph_break = lambda *args: calls.append(args) or original(*args)
for kind, wanted in light.items():
    assert torch.equal(stepped(kind, (lambda: torch.ones(()),)), wanted), kind
assert calls, "torch's own methods are not back"
print(len(light), "optimizers")
"""


def test_all_of_torch_s_optimizers_step_without_a_compiler_to_the_same_bits() -> None:
    ran = subprocess.run([sys.executable, "-c", ALL_OPTIMIZERS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[0]) >= 10


def _other_decorator(step: Any) -> Any:
    @functools.wraps(step)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        import torch._dynamo

        torch._dynamo.graph_break()
        return step(*args, **kwargs)

    return stepping


class Unlike(Optimizer):
    """As a version of torch might have it that nobody has seen yet."""

    @_other_decorator
    def step(self, closure: Any = None) -> None:
        """Do nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""


@pytest.mark.parametrize("method", [Unlike.step, Unlike.zero_grad, Optimizer.__init__, nn.Module.forward, None, 3])
def test_a_method_that_looks_otherwise_stays_as_it_is(method: Any) -> None:
    assert _without_compiler(method) is None
