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
    from codedfedl.calibration.fitting import Fit, fit
    from codedfedl.calibration.traces import Traces, read_traces
    from codedfedl.cold_start import ColdStart, plan_cold_start
    from codedfedl.costs import BlockSetup, Setup
    from codedfedl.delays import DelayModel, FleetDelays, expected_maximum
    from codedfedl.errors import InputError
    from codedfedl.estimators import CodedFedLClassifier, CodedFedLRegressor
    from codedfedl.fleet import Devices, Fleet, Workload, read_fleet
    from codedfedl.measured import MeasuredDelays, MixedDelays
    from codedfedl.planning import Plan, Server, cheapest_plan, plan

__version__ = "0.1.0"

__all__ = [
    "BlockSetup",
    "CodedFedLClassifier",
    "CodedFedLRegressor",
    "ColdStart",
    "DelayModel",
    "Devices",
    "Fit",
    "Fleet",
    "FleetDelays",
    "InputError",
    "MeasuredDelays",
    "MixedDelays",
    "Plan",
    "Server",
    "Setup",
    "Traces",
    "Workload",
    "best_loads",
    "cheapest_plan",
    "expected_maximum",
    "expected_return",
    "fit",
    "minimum_deadline",
    "paper_devices",
    "paper_fleet",
    "plan",
    "plan_cold_start",
    "read_fleet",
    "read_traces",
]

_MODULES = {
    "allocation": ("best_loads", "expected_return", "minimum_deadline"),
    "calibration": ("paper_devices", "paper_fleet"),
    "calibration.fitting": ("Fit", "fit"),
    "calibration.traces": ("Traces", "read_traces"),
    "cold_start": ("ColdStart", "plan_cold_start"),
    "costs": ("BlockSetup", "Setup"),
    "delays": ("DelayModel", "FleetDelays", "expected_maximum"),
    "errors": ("InputError",),
    "estimators": ("CodedFedLClassifier", "CodedFedLRegressor"),
    "fleet": ("Devices", "Fleet", "Workload", "read_fleet"),
    "measured": ("MeasuredDelays", "MixedDelays"),
    "planning": ("Plan", "Server", "cheapest_plan", "plan"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a node of a federation needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'codedfedl' has no attribute {name!r}")
    value = getattr(import_module(f"codedfedl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
