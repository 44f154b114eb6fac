"""The search: which layers on which stage, how many replicas, how large a grain; the front, the pick and the reason."""

from zooid.planner.search import GOALS, Goal, find_plan

__all__ = ["GOALS", "Goal", "find_plan"]
