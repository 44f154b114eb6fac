"""Where to cut the model, which size each stage's members have, and how many replicas: FuncPipe's question (§3.4)."""

from zooid.planner.resources.problem import Degree, Layers, Problem, Sizes, Weights
from zooid.planner.resources.solving import Allocation, AllocationFront, Pick, ResourceSearch

__all__ = [
    "Allocation",
    "AllocationFront",
    "Degree",
    "Layers",
    "Pick",
    "Problem",
    "ResourceSearch",
    "Sizes",
    "Weights",
]
