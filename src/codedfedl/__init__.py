"""Straggler-proof federated learning at the edge.

>>> from codedfedl import paper_fleet, plan
>>> round(plan(paper_fleet(), redundancy=0.1).deadline / 60)
35
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codedfedl.errors import InputError
    from codedfedl.estimators import CodedFedLClassifier, CodedFedLRegressor
    from codedfedl.fitting.fit import Fit, fit
    from codedfedl.fitting.traces import Traces, read_traces
    from codedfedl.fleet.costs import BlockSetup, Setup
    from codedfedl.fleet.delays import DelayModel, FleetDelays, expected_maximum
    from codedfedl.fleet.devices import Devices, Fleet, Workload, read_fleet
    from codedfedl.fleet.measured import MeasuredDelays
    from codedfedl.fleet.mixed import MixedDelays
    from codedfedl.fleet.paper import paper_devices, paper_fleet
    from codedfedl.planning.allocation import best_loads, expected_return, minimum_deadline
    from codedfedl.planning.cold_start import ColdStart, plan_cold_start
    from codedfedl.planning.plan import Plan, Server, cheapest_plan, plan

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
    "errors": ("InputError",),
    "estimators": ("CodedFedLClassifier", "CodedFedLRegressor"),
    "fitting.fit": ("Fit", "fit"),
    "fitting.traces": ("Traces", "read_traces"),
    "fleet.costs": ("BlockSetup", "Setup"),
    "fleet.delays": ("DelayModel", "FleetDelays", "expected_maximum"),
    "fleet.devices": ("Devices", "Fleet", "Workload", "read_fleet"),
    "fleet.measured": ("MeasuredDelays",),
    "fleet.mixed": ("MixedDelays",),
    "fleet.paper": ("paper_devices", "paper_fleet"),
    "planning.allocation": ("best_loads", "expected_return", "minimum_deadline"),
    "planning.cold_start": ("ColdStart", "plan_cold_start"),
    "planning.plan": ("Plan", "Server", "cheapest_plan", "plan"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a node of a federation needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'codedfedl' has no attribute {name!r}")
    value = getattr(import_module(f"codedfedl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
