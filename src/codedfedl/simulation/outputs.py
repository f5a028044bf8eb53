"""What a simulation leaves behind: tables, models, and the guarantee of the private ones.

Beside a federation's metric is what scikit-learn's models reach on all points in one place.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from codedfedl.core.columns import POOLED, totals
from codedfedl.core.disclosure import only_private
from codedfedl.core.record import Record, metric_name, unpacked
from codedfedl.data import Dataset
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.features import FeatureMap, Identity, Tangent, map_settings
from codedfedl.learning.learner import Learner, LeastSquares
from codedfedl.models.model import Model
from codedfedl.privacy.accounting import Account
from codedfedl.random import stream
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import Cell
from codedfedl.runs.tables import CellRun
from codedfedl.schemes import scheme_class
from codedfedl.simulation.checkpoint import CALIBRATION_POINTS, part_of, tangent_of
from codedfedl.simulation.units import SeedUnit

_HOLDS = (
    "against those named by each run; where a helper adds the noise, server and helper do not "
    "collude; a simulation, whose noise comes from the seed: anyone who knows the seed knows the "
    "noise"
)


Accounts = dict[tuple[str, int], dict[str, Any]]
"""The guarantees of private settings, by cell and seed."""

MAX_POINTS = 10_000
"""Of more points a sample is taken: kernel machines need the square of it."""


@dataclass(frozen=True, eq=False)
class Finished:
    """A setting of one seed that has ended, with its arrays in the checkpoint."""

    unit: SeedUnit
    cell: Cell
    stored: Checkpoint

    @cached_property
    def records(self) -> list[Record]:
        """Its records."""
        return unpacked(part_of(self.stored, "records/"))

    @cached_property
    def facts(self) -> dict[str, float]:
        """What its scheme has stated."""
        return {name: value.item() for name, value in part_of(self.stored, "fact/").items()}

    @cached_property
    def tangent(self) -> Tangent | None:
        """The features that it has made of a network, if it has."""
        return tangent_of(self.stored, self.unit.learner(self.cell))

    @property
    def features(self) -> FeatureMap:
        """What its model is linear in, or what its network takes."""
        return self.tangent or self.unit.features

    @property
    def learner(self) -> Learner:
        """What its model is the model of."""
        if self.tangent:
            return LeastSquares(*self.stored["model"].shape)
        return self.unit.learner(self.cell)

    @property
    def usable(self) -> bool:
        """Whether it can predict: it has not diverged, and its map can be saved."""
        finite = np.isfinite(self.stored["model"]).all() and not np.isnan(self.objective)
        on_points = not self.tangent or isinstance(self.unit.features, Identity)
        return bool(finite and on_points and map_settings(self.features))

    @property
    def objective(self) -> float:
        """The training objective; ∞ where nobody may know it."""
        return float(self.stored.get("objective", np.array(np.inf)).item())


def finished(units: Sequence[SeedUnit], checkpoint: Checkpoint) -> list[Finished]:
    """Return every setting of every unit of a finished checkpoint."""
    return [
        Finished(unit, cell, part_of(checkpoint, f"{number}/{s}/"))
        for number, unit in enumerate(units)
        for s, cell in enumerate(unit.cells)
    ]


def tables(every: Sequence[Finished]) -> list[CellRun]:
    """Return what the tables of a run say of its settings."""
    return [
        CellRun(
            cell=each.cell,
            seed=each.unit.seed,
            metric=metric_name(each.unit.dataset.is_classification),
            records=each.records,
            clients=part_of(each.stored, "story/"),
            facts=each.facts | _run_facts(each),
        )
        for each in every
    ]


def _run_facts(ended: Finished) -> dict[str, float]:
    features, dataset = ended.unit.features, ended.unit.dataset
    schemes = [scheme_class(cell.config.name) for cell in ended.unit.cells]
    limits = [r.deadline for r in ended.records if np.isfinite(r.deadline) and not r.is_setup]
    is_private = any(only_private(scheme.info.disclosure) for scheme in schemes)
    return {
        "sigma": getattr(features, "sigma", np.nan),
        "step": ended.cell.experiment.schedule(features, dataset.inputs).step,
        "diverged": float(not np.isfinite(ended.stored["model"]).all()),
        "chance": dataset.chance,
        "test_points": float(len(dataset.test_labels)),
        "ridge": ended.unit.ridge(ended.cell),
        "limit_s": max(limits) if limits and ended.cell.baseline else np.nan,
    } | ({} if is_private else pooled_metrics(dataset))


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
    directory: RunDirectory, every: Sequence[Finished], accounts: Accounts, model: str | None
) -> None:
    """Write ``model.npz``, and the models of all other settings and seeds under ``models``.

    It is of the first seed: of the settings that `model` names (a scheme, a setting or its id), or
    of all, the one with the lowest training objective. Nobody may know that of private settings:
    they come last, in the order of the configuration. A model that diverged is not written.
    """
    usable = [trained for trained in every if trained.usable]
    eligible = [
        trained
        for trained in usable
        if trained.unit.seed == every[0].unit.seed
        and (model is None or model in _names(trained.cell))
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
        account = accounts.get((trained.cell.id, trained.unit.seed))
        directory.save_model(name, _model(trained, account))


def _model(trained: Finished, privacy: dict[str, Any] | None) -> Model:
    dataset, stored = trained.unit.dataset, trained.stored
    temperature = stored["temperature"].item() if "temperature" in stored else None
    origin, offset = dataset.origin, stored.get("offset")
    return Model(
        features=trained.features,
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
        preparation=origin.preparation,
        card=_card(trained, temperature) | {"privacy": privacy},
        learner=trained.learner,
    )


def _classes(dataset: Dataset) -> Any:
    if dataset.classes is None:
        return None
    words = dataset.origin.classes
    return np.array(words) if words else np.arange(dataset.classes)


def _card(trained: Finished, temperature: float | None) -> dict[str, Any]:
    """Return what people want to know of a model; versions and date are added to it."""
    cell, dataset, records = trained.cell, trained.unit.dataset, trained.records
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
        "features": map_settings(trained.features),
        "fleet": cell.experiment.fleet.name,
        **totals(records),
        "simulated": True,
        "metric": metric,
        "test_metric": float(records[-1].metric),
        "objective": _known(trained.objective),
        "epsilon": _known(trained.facts["epsilon"]),
        "delta": _known(trained.facts["delta"]),
        "calibrated_on": None if temperature is None else calibrated,
        "temperature": temperature,
    }


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def privacy_facts(account: Account | None) -> dict[str, Any] | None:
    """Return what a model says of its guarantee: against whom it holds, ε, δ and all releases."""
    return None if account is None else {"holds": _HOLDS, **account.document()}


def write_privacy(directory: RunDirectory, units: Sequence[SeedUnit]) -> Accounts:
    """Write the account of every private setting and seed, and return them all."""
    accounts: Accounts = {}
    runs: list[dict[str, Any]] = []
    for unit in units:
        schemes = [scheme_class(cell.config.name) for cell in unit.cells]
        if not any(only_private(scheme.info.disclosure) for scheme in schemes):
            continue
        for cell, entry in zip(unit.cells, unit.contenders(), strict=True):
            if not only_private(entry.scheme.disclosure):
                continue
            rng = stream(unit.seed, "scheme")
            state = entry.scheme.start(entry.task, entry.fleet, None, rng=rng)
            account = privacy_facts(entry.scheme.describe(state).account)
            if account is None:
                raise InputError(
                    f"scheme {cell.config.name!r} discloses 'dp' alone and states no account: "
                    "return one from describe, or disclose more"
                )
            accounts[cell.id, unit.seed] = account
            which = {"cell": cell.id, "setting": cell.label, "seed": unit.seed}
            runs.append(which | {key: v for key, v in account.items() if key != "holds"})
    if runs:
        document = {"holds": _HOLDS, "runs": runs}
        directory.write_text("privacy.json", json.dumps(document, indent=2) + "\n")
    return accounts


@lru_cache(maxsize=8)
def pooled_metrics(dataset: Dataset) -> dict[str, float]:
    """Return the test metric of each baseline with scikit-learn's defaults, by `POOLED`.

    Inputs are those of the federation. They are for tables: others have none.
    """
    several = not dataset.is_classification and dataset.label_columns > 1
    if not dataset.origin.columns or dataset.is_text or several:
        return {}
    from sklearn.ensemble import (  # type: ignore[import-untyped]
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
    from sklearn.svm import SVC, SVR  # type: ignore[import-untyped]

    points = np.random.default_rng(0).permutation(len(dataset.inputs))[:MAX_POINTS]
    inputs = dataset.inputs[points].astype(np.float64)
    labels, centre, unit = dataset.labels[points].ravel(), 0.0, 1.0
    if dataset.is_classification:
        if len(np.unique(labels)) == 1:
            return {}
        models: list[Any] = [LogisticRegression(max_iter=1000), SVC()]
        models.append(HistGradientBoostingClassifier(random_state=0))
    else:
        centre, unit = float(labels.mean()), float(labels.std()) or 1.0
        models = [Ridge(), SVR(), HistGradientBoostingRegressor(random_state=0)]
    tested = (dataset.test_labels.ravel() - centre) / unit
    tests = dataset.test_inputs.astype(np.float64)
    scores = [model.fit(inputs, (labels - centre) / unit).score(tests, tested) for model in models]
    return dict(zip(POOLED, map(float, scores), strict=True))
