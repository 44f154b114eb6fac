"""Any nn.Module into layers, and any run of layers into one module. Parameters keep their names throughout."""

from zooid.layers.batches import Batch, collate, flatten_inputs, varying_sizes
from zooid.layers.building import build_model
from zooid.layers.casting import autocasting
from zooid.layers.checking import (
    EXAMPLE_SIZE,
    CheckedJob,
    build_scheduler,
    check_data,
    check_evaluation,
    check_job,
    default_device,
    trace_job,
)
from zooid.layers.faithful import faithful_layers
from zooid.layers.iterables import is_in_order
from zooid.layers.layered import LayeredModel, Mode, ParameterHooks, apply_hooks
from zooid.layers.marking import watching_cuts
from zooid.layers.objective import Objective, sum_and_weight
from zooid.layers.randomness import grain_randomness, seed_data
from zooid.layers.stages import Stage, build_stage
from zooid.layers.tracing import trace
from zooid.layers.values import Value

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
