"""What a simulation leaves behind: checkpoints to go on from, and tables to tell from."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import beside, to_host
from codedfedl.features import FeatureMap, RandomFourier
from codedfedl.runs.config import SchemeConfig
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.simulate.engine import FACTS, Simulation, first_round
from codedfedl.simulate.units import Unit
from codedfedl.tables import repeated

__all__ = ["restore", "snapshot", "stories", "write_tables"]


def snapshot(simulation: Simulation, place: int) -> Checkpoint:
    """Return everything that a resumed simulation needs and cannot compute again."""
    arrays: Checkpoint = {f"{place}/round": np.array(simulation.round)}
    for s, setting in enumerate(simulation.settings):
        arrays |= {
            f"{place}/{s}/model": to_host(setting.state.model),
            f"{place}/{s}/seconds": np.array(setting.seconds),
            f"{place}/{s}/deadlines": np.array(setting.deadlines),
            f"{place}/{s}/arrived": np.array(setting.arrived),
            f"{place}/{s}/when": np.array(setting.when).reshape(-1, setting.state.task.clients),
            f"{place}/{s}/excess": np.array(setting.excess),
            f"{place}/{s}/metric": np.array([float(value) for value in setting.metric]),
        }
    return arrays


def restore(simulation: Simulation, checkpoint: Checkpoint, place: int) -> None:
    """Bring a simulation to where its unit was in a checkpoint, if it had begun."""
    if f"{place}/round" not in checkpoint:
        return
    simulation.round = int(checkpoint[f"{place}/round"])
    for s, setting in enumerate(simulation.settings):
        stored = {
            name: checkpoint[f"{place}/{s}/{name}"]
            for name in ("model", "seconds", "deadlines", "arrived", "when", "excess", "metric")
        }
        played = len(stored["seconds"])
        if setting.crew is not None:  # its clients remember more than a model
            simulation.replay(setting, played - len(setting.seconds))
        else:
            model = beside(stored["model"], setting.state.model)
            setting.state = replace(setting.state, model=model, round=played)
        setting.seconds = stored["seconds"].tolist()
        setting.deadlines = stored["deadlines"].tolist()
        setting.arrived = list(stored["arrived"])
        setting.when = list(stored["when"])
        setting.excess = stored["excess"].tolist()
        setting.metric = stored["metric"].tolist()


def stories(simulation: Simulation, place: int) -> Checkpoint:
    """Return what is told of a finished unit: its clients, set-up and facts."""
    return (
        {
            f"{place}/{s}/story/{name}": values
            for s, setting in enumerate(simulation.settings)
            for name, values in simulation.client_story(setting).items()
        }
        | {
            f"{place}/{s}/setup_seconds": np.array(setting.setup.seconds)
            for s, setting in enumerate(simulation.settings)
        }
        | {
            f"{place}/{s}/fact/{name}": np.array([setting.facts.get(name, np.nan)])
            for s, setting in enumerate(simulation.settings)
            for name in FACTS
        }
    )


def write_tables(directory: RunDirectory, units: Sequence[Unit], stored: Checkpoint) -> None:
    """Write rounds, clients, settings and time line of all units from a finished checkpoint."""
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("rounds", "clients", "settings", "timeline")
    }
    for place, unit in enumerate(units):
        metric = "accuracy" if unit.dataset.is_classification else "R²"
        for s, cell in enumerate(unit.cells):
            common = {
                "setting": cell.label,
                "group": cell.group,
                "scheme": cell.scheme.name,
                "redundancy": float(cell.scheme.settings.get("redundancy", np.nan)),
                "as_in_paper": _as_in_paper(unit.features, cell.scheme),
                "seed": unit.seed,
            }
            prefix = f"{place}/{s}/"
            mine = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
            story, facts = _columns(mine, "story/"), _columns(mine, "fact/")
            step = cell.experiment.schedule(unit.features, unit.dataset.inputs).step
            more = {
                "sigma": getattr(unit.features, "sigma", np.nan),
                "step": step,
                "diverged": float(not np.isfinite(mine["model"]).all()),
                "chance": unit.dataset.chance,
                "test_points": float(len(unit.dataset.test_labels)),
            }
            facts |= {name: np.array([value]) for name, value in more.items()}
            tables["rounds"].append(
                repeated(common | {"metric_name": metric}, _round_columns(mine))
            )
            tables["clients"].append(repeated(common, story))
            tables["settings"].append(repeated(common, facts))
            if unit.seed == units[0].seed:
                times = _timeline_columns(mine, story["client"])
                tables["timeline"].append(repeated(common, times))
    for name, parts in tables.items():
        directory.write(f"{name}.parquet", _stacked(parts))


def _timeline_columns(stored: Checkpoint, clients: npt.NDArray[Any]) -> dict[str, Any]:
    """Return when each client's answer came in the first rounds, one row per client and round."""
    when = stored["when"]
    first = 1 - first_round(stored["seconds"])
    shown = slice(first, first + len(when))
    return {
        "round": np.repeat(np.arange(len(when)) + 1, len(clients)),
        "client": np.tile(clients, len(when)),
        "round_seconds": np.repeat(stored["seconds"][shown], len(clients)),
        "deadline_s": np.repeat(stored["deadlines"][shown], len(clients)),
        "seconds": when.ravel(),
        "arrived": stored["arrived"][shown].ravel(),
    }


def _as_in_paper(features: FeatureMap, scheme: SchemeConfig) -> bool:
    """Whether a setting has the paper's own features and code."""
    gaussian = scheme.settings.get("code", "gaussian") == "gaussian"
    return isinstance(features, RandomFourier) and gaussian


def _round_columns(stored: Checkpoint) -> dict[str, Any]:
    training = np.cumsum(stored["seconds"]) / 3600
    return {
        "round": np.arange(len(training)) + first_round(stored["seconds"]),
        "deadline_s": stored["deadlines"],
        "seconds": stored["seconds"],
        "training_hours": training,
        "total_hours": training + float(stored["setup_seconds"]) / 3600,
        "arrived": stored["arrived"].sum(1),
        "excess": stored["excess"],
        "metric": stored["metric"],
    }


def _columns(stored: Checkpoint, prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}


def _stacked(tables: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
