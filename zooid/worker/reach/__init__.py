"""How a member reaches the others of its run, under one roster after the other."""

from zooid.worker.reach.reach_choice import open_reach
from zooid.worker.reach.roster_groups import Groups, Reach

__all__ = ["Groups", "Reach", "open_reach"]
