"""The planner: finds the best plan within limits, or says which limit no plan can meet."""

from zooid.planner.market import Market, single
from zooid.planner.reasons import in_words, why_not
from zooid.planner.search import search

__all__ = ["Market", "in_words", "search", "single", "why_not"]
