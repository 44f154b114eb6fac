"""Any nn.Module into layers, and any run of layers into one module. Parameters keep their names throughout."""

from zooid.layers.batches import Batch, collate, flatten_inputs
from zooid.layers.checking import CheckedJob, build_model, check_data, check_job, trace_job
from zooid.layers.marking import watching_cuts
from zooid.layers.objective import loss_sum_and_weight
from zooid.layers.randomness import grain_randomness, seed_data
from zooid.layers.stages import Stage, build_stage
from zooid.layers.tracing import LayeredModel, Mode, trace
from zooid.layers.values import Value

__all__ = [
    "Batch",
    "CheckedJob",
    "LayeredModel",
    "Mode",
    "Stage",
    "Value",
    "build_model",
    "build_stage",
    "check_data",
    "check_job",
    "collate",
    "flatten_inputs",
    "grain_randomness",
    "loss_sum_and_weight",
    "seed_data",
    "trace",
    "trace_job",
    "watching_cuts",
]
