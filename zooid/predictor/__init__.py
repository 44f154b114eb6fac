"""Time, memory and money of a plan before anything is rented: pure functions of what was measured."""

from zooid.predictor.estimating import estimate_profile
from zooid.predictor.memory import grain_bytes, stage_memory_bytes
from zooid.predictor.money import bill_usd, run_cost
from zooid.predictor.simulator import Layout, simulate_step
from zooid.predictor.stages import stage_times, ties_between

__all__ = [
    "Layout",
    "bill_usd",
    "estimate_profile",
    "grain_bytes",
    "run_cost",
    "simulate_step",
    "stage_memory_bytes",
    "stage_times",
    "ties_between",
]
