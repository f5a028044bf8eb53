"""`codedfedl reproduce coldstart`, `robustness`, `quality` and `settings`: beyond the paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from codedfedl.cli.output import messages, results, save_pictures, wrote
from codedfedl.cli.running import run_experiments
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.fleet.built_in import paper_result
from codedfedl.report.reading import Curve, curves
from codedfedl.report.results import median_of_all, outcomes, written
from codedfedl.report.tables import outcome_rows, outcome_view
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells

__all__ = ["BEYOND", "Reproduction"]

_DATASETS = ("mnist", "fashion-mnist")
_FEWER_PATCHES = 1152  # 32 filters
_RIGHT = "as planned"
_DELAYS: dict[str, dict[str, Any]] = {
    _RIGHT: {},
    "all 2 times slower": {"fleet.slower": 2.0},
    "slowest third 5 times slower": {"fleet.slower": 5.0, "fleet.slower_share": 0.3334},
}
_SPARSE = {"name": "coded", "redundancy": 0.1, "code": "sparse", "nonzeros": 32}
_ROBUST: tuple[tuple[dict[str, Any], int, int, tuple[float, ...]], ...] = (
    # schemes, rounds after which they plan again, epochs, and the hours at which they are compared
    ({"name": "coded-newton", "hours": 3.0}, 10, 300, (1.0, 2.0, 3.0)),
    ({"name": "balanced"}, 10, 300, (2.0, 5.0, 8.0, 11.0)),
    (_SPARSE, 10, 100, (50.0, 100.0, 200.0)),
)
_EXACT = (  # a scheme, and the one that gives the exact solution
    {"name": "coded-newton", "deadline": 1800.0, "hours": 96.0},
    {"name": "one-shot"},
)
_SETTINGS = ("regression", "homogeneous", "thousand")


@dataclass(frozen=True)
class Reproduction:
    """What to run, where, and whether to print; for `frontier`, which fleet and data set."""

    out: Path
    seeds: int
    data: str | None
    device: str
    quiet: bool
    fleet: str | None = None
    dataset: str | None = None

    def has(self, dataset: str, find: Callable[[], object] | None = None) -> bool:
        """Return whether a data set is available; print why if it is not.

        Parameters
        ----------
        find
            Raises `InputError` if it is not; `load_dataset` by default.
        """
        try:
            (find or partial(load_dataset, dataset, self.data))()
        except InputError as error:
            messages.print(f"{dataset} is skipped: {error}", soft_wrap=True)
            return False
        return True

    def run(self, experiments: Mapping[str, Experiment]) -> dict[str, RunDirectory]:
        """Run experiments, or continue them; a finished one is not run again."""
        return run_experiments(experiments, self.out, self.data, self.device)

    def built_in(self, name: str, changes: Mapping[str, Any] | None = None) -> Experiment:
        """Read one of the package's experiments, with the job's seeds."""
        return built_in(name, {"seeds": list(range(self.seeds)), **(changes or {})})

    def show(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Print rows as a table, unless they are wanted as JSON."""
        if not self.quiet:
            table = Table(box=None, padding=(0, 1), header_style="bold")
            for name in rows[0]:
                table.add_column(name.replace("_", " "))
            for row in rows:
                table.add_row(*(_cell(value) for value in row.values()))
            results.print(table)
        return {"rows": rows}


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def cold_start(job: Reproduction) -> dict[str, Any]:
    """Every scheme's hours from a cold start, and the picture."""
    from codedfedl.report.curves import cold_start_figure
    from codedfedl.report.html import render_report

    experiments: dict[str, Experiment] = {}
    for dataset in _DATASETS:
        experiments |= _cold_starts(job, dataset)
    runs, found = job.run(experiments), []
    for name, directory in runs.items():
        found += outcomes(directory)
        dataset = name.removeprefix("coldstart-")
        if dataset not in _DATASETS:
            continue
        known = (paper_result(dataset, "uncoded", None), paper_result(dataset, "coded", 0.1))
        hours = [result[0] for result in known if result is not None]
        experiment = experiments[name]
        assert experiment.training.target is not None
        target = experiment.training.target
        figure = cold_start_figure(curves(directory), experiment.title, target, hours)
        save_pictures(figure, job.out / name)
        wrote(directory.write_text("report.html", render_report(directory)))
    if not job.quiet:
        results.print(outcome_view(found, results.width))
    return {"rows": outcome_rows(found)}


def _cold_starts(job: Reproduction, dataset: str) -> dict[str, Experiment]:
    """Return all schemes, and on features of patches those that pay for them.

    With patches they train to a target of their own, and with fewer of them to the paper's: fewer
    features shorten the set-up, and suffice for it.
    """
    first, patches = job.built_in(f"coldstart-{dataset}"), f"coldstart-patches-{dataset}"
    fewer = {
        "features.n_components": _FEWER_PATCHES,
        "training.target": first.training.target,
    }
    return {
        f"coldstart-{dataset}": first,
        patches: job.built_in(patches),
        f"coldstart-few-{dataset}": job.built_in(patches, fewer),
    }


def robustness(job: Reproduction) -> dict[str, Any]:
    """Compare the metric at equal hours, when clients are slower than the plans assume.

    A plan is kept, follows the clients, or knew it all before: what is lost is lost to the last.
    """
    datasets = [job.dataset] if job.dataset else list(_DATASETS)
    cases = {case: _robust(job, *case) for case in product(datasets, range(len(_ROBUST)), _DELAYS)}
    experiments = {name: one for own in cases.values() for name, one in own.items()}
    runs, rows = job.run(experiments), []
    for (dataset, place, delays), own in cases.items():
        scheme, _, _, hours = _ROBUST[place]
        by_setting = [every for name in own for every in _by_setting(runs[name], own[name])]
        found = dict(zip(("kept", "follows", "foreseen"), by_setting, strict=False))
        best = "foreseen" if "foreseen" in found else "kept"
        for hour in hours:
            at = {how: median_of_all([one.at(hour) for one in found[how]]) for how in found}
            rows += [
                {
                    "dataset": dataset,
                    "scheme": scheme["name"],
                    "delays": delays,
                    "plan": how,
                    "hours": hour,
                    "metric": reached,
                    "points_lost": _points_lost(at[best], reached),
                }
                for how, reached in at.items()
            ]
    return job.show(rows)


def _robust(job: Reproduction, dataset: str, place: int, delays: str) -> dict[str, Experiment]:
    """Return a scheme that keeps its plan and that follows, and one that knew the delays."""
    scheme, replan, epochs, _ = _ROBUST[place]
    changes = {"training.epochs": epochs, **_DELAYS[delays]}
    name = f"robustness-{dataset}-{scheme['name']}-{delays.replace(' ', '-')}"
    kept, following = scheme | {"replan": 0}, scheme | {"replan": replan}
    both = job.built_in(f"coldstart-{dataset}", changes | {"schemes": [kept, following]})
    if delays == _RIGHT:
        return {name: both}
    known = changes | {"schemes": [kept], "fleet.foreseen": True}
    return {name: both, f"{name}-foreseen": job.built_in(f"coldstart-{dataset}", known)}


def _by_setting(directory: RunDirectory, experiment: Experiment) -> list[list[Curve]]:
    every = curves(directory)
    return [[one for one in every if one.cell == cell.id] for cell in cells(experiment)]


def _points_lost(right: float | None, reached: float | None) -> float | None:
    return None if right is None or reached is None else 100 * (right - reached)


def quality(job: Reproduction) -> dict[str, Any]:
    """Count the rounds until the objective is within 1% of exact ridge's, with a third late."""
    changes, rows = {"schemes": list(_EXACT)}, []
    experiments = {
        f"quality-{dataset}": job.built_in(f"coldstart-{dataset}", changes) for dataset in _DATASETS
    }
    for name, directory in job.run(experiments).items():
        experiment, dataset = experiments[name], name.removeprefix("quality-")
        newton, one_shot = cells(experiment)
        every = curves(directory)
        exact = {curve.seed: curve for curve in every if curve.cell == one_shot.id}
        rows += [
            {"dataset": dataset} | _quality(curve, exact[curve.seed], experiment.fleet.clients)
            for curve in every
            if curve.cell == newton.id
        ]
    return job.show(rows)


def _quality(curve: Curve, exact: Curve, clients: int) -> dict[str, Any]:
    best = float(exact.metric[-1])
    close = (curve.excess < 0.01) & (curve.metric > best - 0.003)
    first = int(np.argmax(close)) if close.any() else None
    late = 1 - curve.arrived[1:] / clients
    return {
        "seed": curve.seed,
        "rounds": None if first is None else int(curve.rounds[first]),
        "hours": None if first is None else float(curve.total_hours[first]),
        "late_share": float(late.mean()),
        "least_late_share": float(late.min()),
        "final_excess": float(curve.excess[-1]),
        "final": written(curve.metric_name, float(curve.metric[-1])),
        "exact_ridge": written(curve.metric_name, best),
    }


def settings(job: Reproduction) -> dict[str, Any]:
    """Run all schemes in three settings that nobody tuned for."""
    experiments = {f"setting-{name}": job.built_in(f"setting-{name}") for name in _SETTINGS}
    document = {}
    for name, directory in job.run(experiments).items():
        found = outcomes(directory)
        if not job.quiet:
            results.print(Text(f"\n{experiments[name].title}", style="bold"))
            results.print(outcome_view(found, results.width))
        document[name.removeprefix("setting-")] = outcome_rows(found)
    return {"settings": document}


BEYOND: dict[str, Callable[[Reproduction], dict[str, Any]]] = {
    "coldstart": cold_start,
    "robustness": robustness,
    "quality": quality,
    "settings": settings,
}
"""Reproductions beyond the paper, by name."""
