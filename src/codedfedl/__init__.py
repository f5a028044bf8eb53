"""Straggler-proof federated learning at the edge.

>>> from codedfedl import paper_fleet, plan
>>> round(plan(paper_fleet(), redundancy=0.1).deadline / 60)
35
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "BlockSetup": "costs",
    "ColdStart": "cold_start",
    "DelayModel": "delays",
    "Devices": "fleet",
    "Fleet": "fleet",
    "FleetDelays": "delays",
    "InputError": "errors",
    "MeasuredDelays": "measured",
    "Plan": "planning",
    "Server": "planning",
    "Setup": "costs",
    "Workload": "fleet",
    "best_loads": "allocation",
    "cheapest_plan": "planning",
    "expected_maximum": "delays",
    "expected_return": "allocation",
    "minimum_deadline": "allocation",
    "paper_devices": "calibration",
    "paper_fleet": "calibration",
    "plan": "planning",
    "plan_cold_start": "cold_start",
    "read_fleet": "fleet",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a node of a federation needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'codedfedl' has no attribute {name!r}")
    value = getattr(import_module(f"codedfedl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
