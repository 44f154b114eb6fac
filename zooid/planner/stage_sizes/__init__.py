"""Chooses cuts, the member size of each stage and the number of replicas together: FuncPipe's question (§3.4)."""

from zooid.planner.stage_sizes.answer import Allocation
from zooid.planner.stage_sizes.problem import Aim, Degree, FittedSizes, LayerCosts, MemberSizes, StageSizesProblem
from zooid.planner.stage_sizes.search import StageSizesSearch

__all__ = [
    "Aim",
    "Allocation",
    "Degree",
    "FittedSizes",
    "LayerCosts",
    "MemberSizes",
    "StageSizesProblem",
    "StageSizesSearch",
]
