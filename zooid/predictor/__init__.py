"""The predictor: time, memory and money of a plan before anything is rented, as pure functions of measurements.

`equations` are the papers' closed forms, `simulation` runs a step's action lists on a simulated clock, `learned` fits
models to measurements, and `costs` counts traffic and money.
"""

from zooid.predictor.costs.bill import bill_usd, run_cost, total_usd
from zooid.predictor.estimated_profile import estimate_profile
from zooid.predictor.forecasts import forecast
from zooid.predictor.learned.run_correction import Corrected, corrected
from zooid.predictor.prediction import World, gradient_copies, host_cores, lay_out, layout_of, predict, startup_s
from zooid.predictor.simulation.layout import DirectedLink, Layout, directed_links
from zooid.predictor.simulation.step import Noise, Steps, simulate_step, simulate_steps
from zooid.predictor.stage_memory import grain_bytes, least_memory_bytes, stage_memory_bytes, stage_memory_table
from zooid.predictor.stage_times import stage_times, ties_between
from zooid.predictor.step_bounds import lower_bound_s

__all__ = [
    "Corrected",
    "DirectedLink",
    "Layout",
    "Noise",
    "Steps",
    "World",
    "bill_usd",
    "corrected",
    "directed_links",
    "estimate_profile",
    "forecast",
    "gradient_copies",
    "grain_bytes",
    "host_cores",
    "lay_out",
    "layout_of",
    "least_memory_bytes",
    "lower_bound_s",
    "predict",
    "run_cost",
    "simulate_step",
    "simulate_steps",
    "stage_memory_bytes",
    "stage_memory_table",
    "stage_times",
    "startup_s",
    "ties_between",
    "total_usd",
]
