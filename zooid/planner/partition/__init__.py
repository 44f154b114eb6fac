"""Cuts a chain of layers into stages, exactly, for members that are all alike (Hydrozoa §3.3)."""

from zooid.planner.partition.problem import Partition, StageTable
from zooid.planner.partition.search import best_partitions, smallest_need

__all__ = ["Partition", "StageTable", "best_partitions", "smallest_need"]
