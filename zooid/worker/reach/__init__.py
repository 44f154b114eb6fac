"""How a member reaches the others of its run, under one roster after the other."""

from zooid.worker.reach.groups import Groups, Reach
from zooid.worker.reach.opening import open_reach

__all__ = ["Groups", "Reach", "open_reach"]
