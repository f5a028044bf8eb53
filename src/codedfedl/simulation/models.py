"""The models that a simulation leaves behind, and the guarantee of the private ones."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codedfedl.core.disclosure import only_private
from codedfedl.core.record import metric_name, unpacked
from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.features import map_settings
from codedfedl.models.model import Model
from codedfedl.privacy.accounting import Account
from codedfedl.random import stream
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import Cell
from codedfedl.schemes import scheme_class
from codedfedl.simulation.checkpoint import CALIBRATION_POINTS, part_of
from codedfedl.simulation.units import SeedUnit, deal, entries_of, learner_of

_HOLDS = (
    "against those named by each run; where a helper adds the noise, server and helper do not "
    "collude; a simulation, whose noise comes from the seed: anyone who knows the seed knows the "
    "noise"
)


@dataclass(frozen=True, eq=False)
class _Trained:
    """A setting of one seed with its arrays in the checkpoint."""

    unit: SeedUnit
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
    directory: RunDirectory, units: Sequence[SeedUnit], stored: Checkpoint, model: str | None
) -> None:
    """Write ``model.npz``, and the models of all other settings and seeds under ``models``.

    It is of the first seed: of the settings that `model` names (a scheme, a setting or its id), or
    of all, the one with the lowest training objective. Nobody may know that of private settings:
    they come last, in the order of the configuration. A model that diverged is not written.
    """
    privacy = _written_privacy(directory)
    every = [
        _Trained(unit, cell, part_of(stored, f"{number}/{s}/"))
        for number, unit in enumerate(units)
        for s, cell in enumerate(unit.cells)
    ]
    usable = [trained for trained in every if trained.usable]
    eligible = [
        trained
        for trained in usable
        if trained.unit.seed == units[0].seed and (model is None or model in _names(trained.cell))
    ]
    chosen = min(eligible, key=lambda trained: trained.objective, default=None)
    taken: set[str] = set()
    for trained in usable:
        name = "model.npz"
        if trained is not chosen:
            slug = re.sub(r"[^a-z0-9]+", "-", trained.cell.label.lower()).strip("-")
            if f"{slug}-seed-{trained.unit.seed}" in taken:
                slug = f"{slug}-{trained.cell.id}"
            taken.add(f"{slug}-seed-{trained.unit.seed}")
            name = f"models/{slug}-seed-{trained.unit.seed}.npz"
        directory.save_model(
            name, _model(trained, privacy.get((trained.cell.id, trained.unit.seed)))
        )


def _model(trained: _Trained, privacy: dict[str, Any] | None) -> Model:
    dataset, stored = trained.unit.dataset, trained.stored
    temperature = stored["temperature"].item() if "temperature" in stored else None
    origin, offset = dataset.origin, stored.get("offset")
    return Model(
        features=trained.unit.features,
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
        card=_card(trained, temperature) | {"privacy": privacy},
        learner=learner_of(trained.unit, trained.cell),
    )


def _classes(dataset: Dataset) -> Any:
    if dataset.classes is None:
        return None
    words = dataset.origin.classes
    return np.array(words) if words else np.arange(dataset.classes)


def _card(trained: _Trained, temperature: float | None) -> dict[str, Any]:
    """Return what people want to know of a model; versions and date are added to it."""
    records = unpacked(part_of(trained.stored, "records/"))
    cell, dataset = trained.cell, trained.unit.dataset
    setup = sum(record.seconds for record in records if record.is_setup)
    total = sum(record.seconds for record in records)
    metric = metric_name(dataset.is_classification)
    calibrated = f"{min(CALIBRATION_POINTS, len(dataset.inputs)):,} of the training points"
    return {
        "data": dataset.name,
        "training_points": len(dataset.inputs),
        "test_points": len(dataset.test_inputs),
        "scheme": cell.scheme,
        "setting": cell.label,
        "settings": cell.settings,
        "seed": trained.unit.seed,
        "features": map_settings(trained.unit.features),
        "fleet": cell.experiment.fleet.name,
        "clients": len(records[-1].loads),
        "rounds": sum(not record.is_setup for record in records),
        "training_hours": (total - setup) / 3600,
        "total_hours": total / 3600,
        "simulated": True,
        "metric": metric,
        "test_metric": float(records[-1].metric),
        "objective": trained.objective if np.isfinite(trained.objective) else None,
        "epsilon": _fact(trained.stored, "epsilon"),
        "delta": _fact(trained.stored, "delta"),
        "calibrated_on": None if temperature is None else calibrated,
        "temperature": temperature,
    }


def _fact(stored: Checkpoint, name: str) -> float | None:
    value = float(stored.get(f"fact/{name}", np.array([np.nan])).item())
    return value if np.isfinite(value) else None


def privacy_facts(account: Account | None) -> dict[str, Any] | None:
    """Return what a model says of its guarantee: against whom it holds, ε, δ and all releases."""
    return None if account is None else {"holds": _HOLDS, **account.document()}


def write_privacy(directory: RunDirectory, units: Sequence[SeedUnit]) -> None:
    """Write the account of every private setting and seed; nothing where there is none."""
    runs: list[dict[str, Any]] = []
    for unit in units:
        schemes = [scheme_class(cell.config.name) for cell in unit.cells]
        if not any(only_private(scheme.info.disclosure) for scheme in schemes):
            continue
        for cell, entry in zip(unit.cells, entries_of(unit, deal(unit)), strict=True):
            if not only_private(entry.scheme.disclosure):
                continue
            rng = stream(unit.seed, "scheme")
            state = entry.scheme.start(entry.task, entry.fleet, None, rng=rng)
            account = entry.scheme.describe(state).account
            if account is None:
                raise InputError(
                    f"scheme {cell.config.name!r} discloses 'dp' alone and states no account: "
                    "return one from describe, or disclose more"
                )
            which = {"cell": cell.id, "setting": cell.label, "seed": unit.seed}
            runs.append(which | account.document())
    if runs:
        document = {"holds": _HOLDS, "runs": runs}
        directory.write_text("privacy.json", json.dumps(document, indent=2) + "\n")


def _written_privacy(directory: RunDirectory) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the guarantee of every private setting, by its cell and seed."""
    document = directory.privacy()
    return {
        (run.pop("cell"), run.pop("seed")): {"holds": document["holds"], **run}
        for run in document.get("runs", [])
    }
