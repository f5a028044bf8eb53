"""What a scheme of your own should do, tried in a second on a small simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import nan
from typing import Any

import numpy as np

from codedfedl.arrays import to_host
from codedfedl.core.protocol import Limits
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.runs.config import Experiment
from codedfedl.runs.documents import check
from codedfedl.runs.grid import cells
from codedfedl.schemes import make_scheme, scheme_class
from codedfedl.simulation.checkpoint import restore, snapshot
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.units import SeedUnit, datasets, units

_ROUNDS = 20
_SMALL: dict[str, Any] = {
    "data": {"name": "digits"},
    "fleet": {"clients": 8},
    "features": {"n_components": 64},
    "training": {"epochs": _ROUNDS},
}
_LIMITS = Limits(deadline=60.0, setup_deadline=60.0, rounds=_ROUNDS, availability=0.95)
_PRESENT = 0.8  # share of the rounds, where clients may be absent


@dataclass(frozen=True)
class Checked:
    """What was checked, whether it holds, and a remark; `required` of any scheme."""

    name: str
    holds: bool
    remark: str
    required: bool = True


def check_scheme(name: str, settings: Mapping[str, Any]) -> list[Checked]:
    """Check a scheme: what it asks, whether it repeats, resumes, learns and refuses.

    Parameters
    ----------
    name
        ``module:Class``, or a built-in scheme.
    """
    experiment = check(_SMALL | {"schemes": [{"name": name, **settings}]}, name)
    experiment.build_schemes()
    chosen = cells(experiment)
    (unit,) = units(chosen, [0], datasets(chosen, None))
    whole: list[Simulation] = []

    def ask() -> str:
        unit.contenders()[0].check()
        whole.append(_played(unit))
        rounds = whole[0].settings[0].rounds
        if not rounds or not np.isfinite(to_host(whole[0].settings[0].state.model)).all():
            raise InputError("it plays no round, or its model is not finite: lower its step")
        return f"{len(rounds)} rounds, accuracy {rounds[-1].metric:.1%}"

    first = _tried("asks, and receives answers", ask)
    if not first.holds:
        return [first]
    rest: dict[str, Callable[[], str]] = {
        "repeats": lambda: _same(whole[0], _played(unit)),
        "resumes": lambda: _same(whole[0], _resumed(unit)),
        "clients may be absent": lambda: _with_absent(unit),
    }
    needed = [_tried(what, tried) for what, tried in rest.items()]
    learned = whole[0].settings[0].rounds[-1].metric > 2 * unit.dataset.chance
    return [
        first,
        *needed,
        Checked("learns", bool(learned), "above twice chance in 20 rounds", required=False),
        _refusals(name, settings, experiment),
        replace(_tried("starts in a federation", lambda: _in_federation(unit)), required=False),
    ]


def _tried(what: str, tried: Callable[[], str]) -> Checked:
    try:
        return Checked(what, holds=True, remark=tried())
    except Exception as error:  # whatever a user's own code raises
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return Checked(what, holds=False, remark=f"{kind}{error}")


def _played(unit: SeedUnit, rounds: int = _ROUNDS, begun: Simulation | None = None) -> Simulation:
    simulation = begun or Simulation(unit.problem(), unit.contenders(), 0)
    (setting,) = simulation.settings
    while setting.driver.played < rounds and (ask := setting.ask()) is not None:
        simulation.play([(setting, ask)])
    simulation.measuring.complete(simulation.settings)
    simulation.measuring.finish()
    return simulation


def _resumed(unit: SeedUnit) -> Simulation:
    simulation = Simulation(unit.problem(), unit.contenders(), 0)
    restore(simulation, snapshot(_played(unit, _ROUNDS // 2), 0), 0)
    return _played(unit, begun=simulation)


def _same(before: Simulation, after: Simulation) -> str:
    models = [to_host(run.settings[0].state.model) for run in (before, after)]
    if not np.array_equal(models[0], models[1]):
        raise InputError(
            "the model is another: keep all that a round depends on in the state, draw from rng, "
            "and let `checkpointed` be False where there is more than a model and a round"
        )
    return "the same bits"


def _with_absent(unit: SeedUnit) -> str:
    (contender,) = unit.contenders()
    assert isinstance(contender.actual, Fleet)
    absent = replace(contender.actual, availability=np.full(len(contender.actual), _PRESENT))
    there = replace(contender, fleet=absent, actual=absent)
    played = _played(unit, begun=Simulation(unit.problem(), [there], 0))
    return f"{len(played.settings[0].rounds)} rounds with {1 - _PRESENT:.0%} absent"


def _refusals(name: str, settings: Mapping[str, Any], experiment: Experiment) -> Checked:
    """Give every number among its settings a senseless value."""
    made = scheme_class(name)
    numbers = [entry.name for entry in fields(made) if type(entry.default) in (int, float)]
    accepted = []
    for key in (key for key in numbers if key not in ("message_bits", "server_step")):
        for value in (-1, nan):
            try:
                make_scheme(name, {**settings, key: value})
                accepted.append(f"{key} = {value}")
            except InputError:
                continue
    remark = f"accepts {', '.join(accepted)}: raise InputError in __post_init__"
    return Checked(
        "refuses", not accepted, remark if accepted else "numbers that make no sense", False
    )


def _in_federation(unit: SeedUnit) -> str:
    (contender,) = unit.contenders()
    contender.scheme.check(limits=_LIMITS)
    contender.scheme.start(contender.task, contender.fleet, None, _LIMITS)
    return "within an operator's limits"
