"""Time, memory and money of a plan before anything is rented: pure functions of what was measured."""

from zooid.predictor.costs.bill import bill_usd, run_cost, samples_per_usd, total_usd, usd_per_million_samples
from zooid.predictor.costs.traffic import Traffic, step_traffic
from zooid.predictor.costs.usage import Checkpoints, DataSet, Usage, num_checkpoints, run_usage
from zooid.predictor.estimated_profile import estimate_profile
from zooid.predictor.forecasts import forecast
from zooid.predictor.learned.all_reduce_model import AllReduceTime, LearnedAllReduce, fit_all_reduce
from zooid.predictor.learned.scaling import ScalingModel, StepProbe, StepTime, fit_scaling
from zooid.predictor.prediction import World, gradient_copies, host_cores, lay_out, layout_of, predict, startup_s
from zooid.predictor.simulation.layout import Layout, Way, alike, ways_from
from zooid.predictor.simulation.step import Noise, Steps, simulate_step, simulate_steps
from zooid.predictor.stage_memory import grain_bytes, least_memory_bytes, stage_memory_bytes, stage_memory_table
from zooid.predictor.stage_times import stage_times, ties_between
from zooid.predictor.step_bounds import lower_bound_s

__all__ = [
    "AllReduceTime",
    "Checkpoints",
    "DataSet",
    "Layout",
    "LearnedAllReduce",
    "Noise",
    "ScalingModel",
    "StepProbe",
    "StepTime",
    "Steps",
    "Traffic",
    "Usage",
    "Way",
    "World",
    "alike",
    "bill_usd",
    "estimate_profile",
    "fit_all_reduce",
    "fit_scaling",
    "forecast",
    "gradient_copies",
    "grain_bytes",
    "host_cores",
    "lay_out",
    "layout_of",
    "least_memory_bytes",
    "lower_bound_s",
    "num_checkpoints",
    "predict",
    "run_cost",
    "run_usage",
    "samples_per_usd",
    "simulate_step",
    "simulate_steps",
    "stage_memory_bytes",
    "stage_memory_table",
    "stage_times",
    "startup_s",
    "step_traffic",
    "ties_between",
    "total_usd",
    "usd_per_million_samples",
    "ways_from",
]
