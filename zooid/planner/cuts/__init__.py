"""Where to cut a chain of layers, exactly, for every number of stages; members are all alike (Hydrozoa §3.3)."""

from zooid.planner.cuts.searching import Cut, cut_into, cut_into_each
from zooid.planner.cuts.table import Partition, StageTable

__all__ = ["Cut", "Partition", "StageTable", "cut_into", "cut_into_each"]
