"""The models that a simulation leaves behind: one to use, and the others beside it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from codedfedl.arrays import Array, to_host
from codedfedl.core.disclosure import only_private
from codedfedl.core.record import metric_name, unpacked
from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.models.files import map_settings
from codedfedl.models.model import Model, fitted_temperature
from codedfedl.random import stream
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import Cell
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.privacy import written_privacy
from codedfedl.simulation.units import Unit

__all__ = ["check_model", "endings", "write_models"]

_CALIBRATED = 2000  # training points that probabilities are calibrated on


@dataclass(frozen=True, eq=False)
class _Trained:
    """A setting of one seed with its arrays in the checkpoint."""

    unit: Unit
    cell: Cell
    stored: Checkpoint

    @property
    def usable(self) -> bool:
        """Whether it can predict: it has not diverged, and its map can be saved."""
        finite = np.isfinite(self.stored["model"]).all() and not np.isnan(self.objective)
        return bool(finite and map_settings(self.unit.features))

    @property
    def objective(self) -> float:
        """The training objective; ∞ where nobody may know it."""
        return float(self.stored.get("objective", np.array(np.inf)).item())


def endings(simulation: Simulation, place: int) -> Checkpoint:
    """Evaluate every setting's last model on the training points."""
    arrays: Checkpoint = {}
    for s, setting in enumerate(simulation.settings):
        if only_private(setting.scheme.info.disclosure):
            continue  # the privacy budget does not cover this
        with np.errstate(over="ignore", invalid="ignore"):  # it may have diverged
            arrays[f"{place}/{s}/objective"] = np.array(_objective(simulation, setting))
            if simulation.problem.test_classes is None:
                arrays[f"{place}/{s}/offset"] = simulation.problem.target_mean
            else:
                temperature = _temperature(simulation, setting)
                arrays[f"{place}/{s}/temperature"] = np.array(temperature)
    return arrays


def _objective(simulation: Simulation, setting: Setting) -> float:
    """Return ½‖xβ − y‖² of a point, on average over the training points, and the ridge."""
    model, points, total = setting.state.model, 0, 0.0
    for features, targets in chain.from_iterable(b.parts() for b in simulation.problem.batches):
        residuals = to_host(features @ model - targets).astype(np.float64)
        total, points = total + float((residuals**2).sum()), points + len(residuals)
    penalty = setting.state.task.ridge * float((to_host(model).astype(np.float64) ** 2).sum())
    return total / points / 2 + penalty / 2


def _temperature(simulation: Simulation, setting: Setting) -> float:
    scores, targets = zip(*_some_points(simulation, setting.state.model), strict=True)
    outputs = np.concatenate(scores)
    if not np.isfinite(outputs).all():
        return np.nan
    return fitted_temperature(outputs, np.concatenate(targets).argmax(axis=1))


def _some_points(simulation: Simulation, model: Array) -> Iterator[tuple[Any, Any]]:
    """Give scores and targets of some training points, as many of each mini-batch."""
    batches = simulation.problem.batches
    for place, batch in enumerate(batches):
        order = stream(simulation.seed, "subset", place).permutation(len(batch.targets))
        rows = np.sort(order[: -(-_CALIBRATED // len(batches))])
        scores = to_host(batch.features[rows] @ model)
        yield scores.astype(np.float64), to_host(batch.targets)[rows]


def check_model(name: str | None, cells: Sequence[Cell]) -> None:
    """Refuse the name of a model that no setting has, before any work."""
    known = list(dict.fromkeys(word for cell in cells for word in _names(cell)[:2]))
    if name is not None and not any(name in _names(cell) for cell in cells):
        raise InputError(
            f"--model is {name!r}, which is not a scheme of the run: {nearest(name, known)}"
        )


def _names(cell: Cell) -> tuple[str, str, str]:
    return cell.scheme, cell.label, cell.id


def write_models(
    directory: RunDirectory, units: Sequence[Unit], stored: Checkpoint, model: str | None
) -> None:
    """Write ``model.npz``, and the models of all other settings and seeds under ``models``.

    It is of the first seed: of the settings that `model` names (a scheme, a setting or its id), or
    of all, the one with the lowest training objective. Nobody may know that of private settings:
    they come last, in the order of the configuration. A model that diverged is not written.
    """
    privacy = written_privacy(directory)
    found = [
        _Trained(unit, cell, _part(stored, f"{place}/{s}/"))
        for place, unit in enumerate(units)
        for s, cell in enumerate(unit.cells)
    ]
    usable = [one for one in found if one.usable]
    eligible = [
        one
        for one in usable
        if one.unit.seed == units[0].seed and (model is None or model in _names(one.cell))
    ]
    chosen = min(eligible, key=lambda one: one.objective, default=None)
    taken: set[str] = set()
    for one in usable:
        name = "model.npz"
        if one is not chosen:
            slug = re.sub(r"[^a-z0-9]+", "-", one.cell.label.lower()).strip("-")
            slug = f"{slug}-{one.cell.id}" if f"{slug}-{one.unit.seed}" in taken else slug
            taken.add(f"{slug}-{one.unit.seed}")
            name = f"models/{slug}-seed-{one.unit.seed}.npz"
        directory.save_model(name, _model(one, privacy.get((one.cell.id, one.unit.seed))))


def _model(one: _Trained, privacy: dict[str, Any] | None) -> Model:
    dataset, stored = one.unit.dataset, one.stored
    temperature = stored["temperature"].item() if "temperature" in stored else None
    origin, offset = dataset.origin, stored.get("offset")
    return Model(
        features=one.unit.features,
        weights=stored["model"],
        inputs=dataset.inputs.shape[1],
        classes=_classes(dataset),
        columns=origin.columns,
        labels=origin.labels,
        low=origin.low,
        span=origin.span,
        offset=offset,
        scale=None if offset is None else np.ones_like(offset),
        temperature=temperature,
        card=_card(one, temperature) | {"privacy": privacy},
    )


def _classes(dataset: Dataset) -> Any:
    if dataset.classes is None:
        return None
    words = dataset.origin.classes
    return np.array(words) if words else np.arange(dataset.classes)


def _card(one: _Trained, temperature: float | None) -> dict[str, Any]:
    """Return what people want to know of a model; versions and date are added to it."""
    records, cell, dataset = unpacked(_part(one.stored, "records/")), one.cell, one.unit.dataset
    setup = sum(record.seconds for record in records if record.is_setup)
    total = sum(record.seconds for record in records)
    metric = metric_name(dataset.is_classification)
    calibrated = f"{min(_CALIBRATED, len(dataset.inputs)):,} of the training points"
    return {
        "data": dataset.name,
        "training_points": len(dataset.inputs),
        "test_points": len(dataset.test_inputs),
        "scheme": cell.scheme,
        "setting": cell.label,
        "settings": cell.settings,
        "seed": one.unit.seed,
        "features": map_settings(one.unit.features),
        "fleet": cell.experiment.fleet.name,
        "clients": len(records[-1].loads),
        "rounds": sum(not record.is_setup for record in records),
        "training_hours": (total - setup) / 3600,
        "total_hours": total / 3600,
        "simulated": True,
        "metric": metric,
        "test_metric": float(records[-1].metric),
        "objective": one.objective if np.isfinite(one.objective) else None,
        "epsilon": _fact(one.stored, "epsilon"),
        "delta": _fact(one.stored, "delta"),
        "calibrated_on": None if temperature is None else calibrated,
        "temperature": temperature,
    }


def _fact(stored: Checkpoint, name: str) -> float | None:
    value = float(stored.get(f"fact/{name}", np.array([np.nan])).item())
    return value if np.isfinite(value) else None


def _part(stored: Checkpoint, prefix: str) -> Checkpoint:
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
