"""Cuts any nn.Module into layers, and turns any run of layers into one module. Parameters keep their names.

Tracing imports a compiler, which takes seconds and which training members do not need, so that it loads when used.
"""

from typing import TYPE_CHECKING

from zooid.core.lazy import lazy_names
from zooid.layers.jobs.batches import Batch, collate, flatten_inputs, varying_sizes
from zooid.layers.jobs.iterables import is_in_order
from zooid.layers.jobs.job_checks import (
    EXAMPLE_SIZE,
    CheckedJob,
    build_scheduler,
    check_data,
    check_evaluation,
    check_job,
    default_device,
)
from zooid.layers.jobs.model_builder import build_model
from zooid.layers.jobs.objective import Objective, sum_and_weight
from zooid.layers.stages.autocast import autocasting
from zooid.layers.stages.cut_watch import watching_cuts
from zooid.layers.stages.layered_model import LayeredModel, Mode, ParameterHooks, apply_hooks
from zooid.layers.stages.randomness import grain_randomness, seed_data
from zooid.layers.stages.stage_module import Stage, build_stage
from zooid.layers.tracing.values import Value

if TYPE_CHECKING:
    from zooid.layers.stages.faithful_layers import faithful_layers
    from zooid.layers.tracing.tracer import trace, trace_job

__all__ = [
    "EXAMPLE_SIZE",
    "Batch",
    "CheckedJob",
    "LayeredModel",
    "Mode",
    "Objective",
    "ParameterHooks",
    "Stage",
    "Value",
    "apply_hooks",
    "autocasting",
    "build_model",
    "build_scheduler",
    "build_stage",
    "check_data",
    "check_evaluation",
    "check_job",
    "collate",
    "default_device",
    "faithful_layers",
    "flatten_inputs",
    "grain_randomness",
    "is_in_order",
    "seed_data",
    "sum_and_weight",
    "trace",
    "trace_job",
    "varying_sizes",
    "watching_cuts",
]

_LAZY = {
    "faithful_layers": "zooid.layers.stages.faithful_layers",
    "trace": "zooid.layers.tracing.tracer",
    "trace_job": "zooid.layers.tracing.tracer",
}

__getattr__ = lazy_names(__name__, _LAZY)
