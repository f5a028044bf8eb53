"""Straggler-proof federated learning at the edge.

>>> from codedfedl import paper_fleet, plan
>>> round(plan(paper_fleet(), redundancy=0.1).deadline / 60)
35

An experiment in Python, as `codedfedl simulate` runs it from a file:

>>> from codedfedl import Experiment, simulate
>>> results = simulate(Experiment(fleet={"clients": 10}))
>>> results[0].final[0] > 0.9
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codedfedl.api import read_experiment, simulate
    from codedfedl.arrays import Array
    from codedfedl.core.gradients import Gradient
    from codedfedl.core.protocol import (
        EACH,
        SUM,
        Ask,
        Description,
        Inbox,
        Info,
        Reply,
        Scheme,
        State,
        Task,
    )
    from codedfedl.core.waiting import Everyone, Fastest, Next, Until
    from codedfedl.core.work import Answer, Client, Work
    from codedfedl.data import Dataset, load_dataset
    from codedfedl.errors import InputError
    from codedfedl.estimators import CodedFedLClassifier, CodedFedLRegressor
    from codedfedl.fitting.fit import Fit, fit
    from codedfedl.fitting.traces import Traces, read_traces
    from codedfedl.fleet.built_in import paper_devices, paper_fleet, phone_devices, phone_fleet
    from codedfedl.fleet.costs import BlockSetup, Cost, Server
    from codedfedl.fleet.delays import DelayModel, DelayParameters
    from codedfedl.fleet.devices import Devices, Fleet, Workload, read_fleet
    from codedfedl.fleet.maximum import expected_maximum
    from codedfedl.fleet.measured import MeasuredDelays, MixedDelays, read_measured
    from codedfedl.learning.optimisers import step
    from codedfedl.models import Model, load_model
    from codedfedl.planning.allocation import best_loads, expected_return, minimum_deadline
    from codedfedl.planning.cold_start import ColdStart, plan_cold_start
    from codedfedl.planning.hours import Training, cheapest_plan
    from codedfedl.planning.plan import Plan, plan
    from codedfedl.report.loaded_run import Run, load_run
    from codedfedl.runs.config import Experiment
    from codedfedl.schemes.coded import CFL, Coded
    from codedfedl.schemes.coded_newton import CodedNewton
    from codedfedl.schemes.fedavg import FedAvg
    from codedfedl.schemes.greedy import Greedy
    from codedfedl.schemes.one_shot import OneShot
    from codedfedl.schemes.sketch_solve import SketchSolve
    from codedfedl.schemes.uncoded import Uncoded

__version__ = "0.3.0"

__all__ = [
    "CFL",
    "EACH",
    "SUM",
    "Answer",
    "Array",
    "Ask",
    "BlockSetup",
    "Client",
    "Coded",
    "CodedFedLClassifier",
    "CodedFedLRegressor",
    "CodedNewton",
    "ColdStart",
    "Cost",
    "Dataset",
    "DelayModel",
    "DelayParameters",
    "Description",
    "Devices",
    "Everyone",
    "Experiment",
    "Fastest",
    "FedAvg",
    "Fit",
    "Fleet",
    "Gradient",
    "Greedy",
    "Inbox",
    "Info",
    "InputError",
    "MeasuredDelays",
    "MixedDelays",
    "Model",
    "Next",
    "OneShot",
    "Plan",
    "Reply",
    "Run",
    "Scheme",
    "Server",
    "SketchSolve",
    "State",
    "Task",
    "Traces",
    "Training",
    "Uncoded",
    "Until",
    "Work",
    "Workload",
    "best_loads",
    "cheapest_plan",
    "expected_maximum",
    "expected_return",
    "fit",
    "load_dataset",
    "load_model",
    "load_run",
    "minimum_deadline",
    "paper_devices",
    "paper_fleet",
    "phone_devices",
    "phone_fleet",
    "plan",
    "plan_cold_start",
    "read_experiment",
    "read_fleet",
    "read_measured",
    "read_traces",
    "simulate",
    "step",
]

_MODULES = {
    "api": ("read_experiment", "simulate"),
    "arrays": ("Array",),
    "core.gradients": ("Gradient",),
    "core.protocol": (
        *("EACH", "SUM", "Ask", "Description", "Inbox", "Info", "Reply", "Scheme", "State", "Task"),
    ),
    "learning.optimisers": ("step",),
    "core.waiting": ("Everyone", "Fastest", "Next", "Until"),
    "core.work": ("Answer", "Client", "Work"),
    "data": ("Dataset", "load_dataset"),
    "errors": ("InputError",),
    "estimators": ("CodedFedLClassifier", "CodedFedLRegressor"),
    "fitting.fit": ("Fit", "fit"),
    "fitting.traces": ("Traces", "read_traces"),
    "fleet.built_in": ("paper_devices", "paper_fleet", "phone_devices", "phone_fleet"),
    "fleet.costs": ("BlockSetup", "Cost", "Server"),
    "fleet.delays": ("DelayModel", "DelayParameters"),
    "fleet.devices": ("Devices", "Fleet", "Workload", "read_fleet"),
    "fleet.maximum": ("expected_maximum",),
    "fleet.measured": ("MeasuredDelays", "MixedDelays", "read_measured"),
    "models": ("Model", "load_model"),
    "planning.allocation": ("best_loads", "expected_return", "minimum_deadline"),
    "planning.cold_start": ("ColdStart", "plan_cold_start"),
    "planning.hours": ("Training", "cheapest_plan"),
    "planning.plan": ("Plan", "plan"),
    "report.loaded_run": ("Run", "load_run"),
    "runs.config": ("Experiment",),
    "schemes.coded": ("CFL", "Coded"),
    "schemes.coded_newton": ("CodedNewton",),
    "schemes.fedavg": ("FedAvg",),
    "schemes.greedy": ("Greedy",),
    "schemes.one_shot": ("OneShot",),
    "schemes.sketch_solve": ("SketchSolve",),
    "schemes.uncoded": ("Uncoded",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a node of a federation needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'codedfedl' has no attribute {name!r}")
    value = getattr(import_module(f"codedfedl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
