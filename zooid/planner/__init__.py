"""The search: which layers on which stage, how many replicas, how large a grain; or which limit stands in the way."""

from zooid.planner.market import Market, single
from zooid.planner.reasons import in_words, why_not
from zooid.planner.search import search

__all__ = ["Market", "in_words", "search", "single", "why_not"]
