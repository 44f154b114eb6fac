"""The exact search for the machines to rent, their numbers, and the local batch of each member (Srifty §4.4)."""

from zooid.planner.fleets.answer import Fleet, FleetFront, Hire, LocalBatch
from zooid.planner.fleets.arrays import AllReduceOfVm
from zooid.planner.fleets.problem import ComputePoint, FleetProblem, VmType
from zooid.planner.fleets.search import fleet_front

__all__ = [
    "AllReduceOfVm",
    "ComputePoint",
    "Fleet",
    "FleetFront",
    "FleetProblem",
    "Hire",
    "LocalBatch",
    "VmType",
    "fleet_front",
]
