"""The search: which layers on which stage, how many replicas, how large a grain; or which limit stands in the way."""

from zooid.planner.search import GOALS, Goal, find_plan

__all__ = ["GOALS", "Goal", "find_plan"]
