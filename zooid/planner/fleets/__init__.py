"""Which machines to rent, how many of each, and how much of the batch each computes (Srifty §4.4), exactly."""

from zooid.planner.fleets.fleet import Fleet, FleetAnswer, FleetFront, Hire, Share, appraise
from zooid.planner.fleets.problem import ComputePoint, FleetGoal, FleetProblem, VmType
from zooid.planner.fleets.shortfall import Change, Shortfall
from zooid.planner.fleets.solving import find_fleets, fleet_front
from zooid.planner.fleets.tables import AllReduceOfVm

__all__ = [
    "AllReduceOfVm",
    "Change",
    "ComputePoint",
    "Fleet",
    "FleetAnswer",
    "FleetFront",
    "FleetGoal",
    "FleetProblem",
    "Hire",
    "Share",
    "Shortfall",
    "VmType",
    "appraise",
    "find_fleets",
    "fleet_front",
]
