"""The predictor: time, memory and money of a plan before anything is rented, as pure functions of measurements.

`equations` are the papers' closed forms, `simulation` runs a step's action lists on a simulated clock, `learned` fits
models to measurements, and `costs` counts traffic and money.
"""

from zooid.predictor.costs.bill import bill_usd, run_cost, samples_per_usd, total_usd, usd_per_million_samples
from zooid.predictor.costs.traffic import Traffic, step_traffic
from zooid.predictor.costs.usage import Checkpoints, DataSet, RunUsage, num_checkpoints, run_usage
from zooid.predictor.estimated_profile import estimate_profile
from zooid.predictor.forecasts import forecast
from zooid.predictor.learned.all_reduce_model import LearnedAllReduce, fit_all_reduce
from zooid.predictor.learned.scaling import ScalingModel, StepProbe, StepTime, fit_scaling
from zooid.predictor.prediction import Proposal, World, host_cores, lay_out, place, predict, startup_s
from zooid.predictor.simulation.layout import AllReduceTime, DirectedLink, Layout, directed_links
from zooid.predictor.simulation.step import Noise, Steps, simulate_step, simulate_steps
from zooid.predictor.stage_memory import grain_bytes, least_memory_bytes, stage_memory_bytes, stage_memory_table
from zooid.predictor.stage_times import stage_times, ties_between
from zooid.predictor.step_bounds import lower_bound_s

__all__ = [
    "AllReduceTime",
    "Checkpoints",
    "DataSet",
    "DirectedLink",
    "Layout",
    "LearnedAllReduce",
    "Noise",
    "Proposal",
    "RunUsage",
    "ScalingModel",
    "StepProbe",
    "StepTime",
    "Steps",
    "Traffic",
    "World",
    "bill_usd",
    "directed_links",
    "estimate_profile",
    "fit_all_reduce",
    "fit_scaling",
    "forecast",
    "grain_bytes",
    "host_cores",
    "lay_out",
    "least_memory_bytes",
    "lower_bound_s",
    "num_checkpoints",
    "place",
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
]
