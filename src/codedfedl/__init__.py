"""Straggler-proof federated learning at the edge.

>>> from codedfedl import paper_fleet, plan
>>> round(plan(paper_fleet(), redundancy=0.1).deadline / 60)
35
"""

from codedfedl.allocation import best_loads, expected_return, minimum_deadline
from codedfedl.calibration import paper_devices, paper_fleet
from codedfedl.cold_start import ColdStart, plan_cold_start
from codedfedl.costs import BlockSetup, Setup
from codedfedl.delays import DelayModel, FleetDelays, expected_maximum
from codedfedl.errors import InputError
from codedfedl.fleet import Devices, Fleet, Workload, read_fleet
from codedfedl.measured import MeasuredDelays
from codedfedl.planning import Plan, Server, cheapest_plan, plan

__version__ = "0.1.0"

__all__ = [
    "BlockSetup",
    "ColdStart",
    "DelayModel",
    "Devices",
    "Fleet",
    "FleetDelays",
    "InputError",
    "MeasuredDelays",
    "Plan",
    "Server",
    "Setup",
    "Workload",
    "best_loads",
    "cheapest_plan",
    "expected_maximum",
    "expected_return",
    "minimum_deadline",
    "paper_devices",
    "paper_fleet",
    "plan",
    "plan_cold_start",
    "read_fleet",
]
