"""`codedfedl reproduce coldstart`, `robustness`, `quality` and `settings`: beyond the paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from codedfedl.cli.output import messages, results, save_pictures, with_resume_hint, wrote
from codedfedl.cli.running import run_experiment
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.fleet.paper import paper_result
from codedfedl.report.reading import Curve, curves
from codedfedl.report.results import Outcome, median_of_all, outcomes, written
from codedfedl.report.rows import outcome_rows
from codedfedl.report.tables import outcome_view
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

    def run(self, name: str, experiment: Experiment) -> RunDirectory:
        """Run an experiment, or continue it; a finished one is not run again."""
        directory = RunDirectory(self.out / name)
        with with_resume_hint(directory.path, resumes=True):
            run_experiment(experiment, directory, self.data, self.device, resume=True)
        return directory

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

    found = []
    for dataset in _DATASETS:
        experiment = job.built_in(f"coldstart-{dataset}")
        directory = job.run(f"coldstart-{dataset}", experiment)
        found += outcomes(directory)
        known = (paper_result(dataset, "uncoded", None), paper_result(dataset, "coded", 0.1))
        hours = [result[0] for result in known if result is not None]
        assert experiment.training.target is not None
        target = experiment.training.target
        figure = cold_start_figure(curves(directory), experiment.title, target, hours)
        save_pictures(figure, job.out / f"coldstart-{dataset}")
        wrote(directory.write_text("report.html", render_report(directory)))
        found += _patches(job, dataset, target)
    if not job.quiet:
        results.print(outcome_view(found, results.width))
    return {"rows": outcome_rows(found)}


def _patches(job: Reproduction, dataset: str, papers_target: float) -> list[Outcome]:
    """Run the schemes on features of patches: to a target of their own, and to the paper's.

    Fewer features shorten the set-up, and suffice for the paper's target.
    """
    fewer = {"features.n_components": _FEWER_PATCHES, "training.target": papers_target}
    found = []
    for name, changes in (
        (f"coldstart-patches-{dataset}", {}),
        (f"coldstart-few-{dataset}", fewer),
    ):
        experiment = job.built_in(f"coldstart-patches-{dataset}", changes)
        found += outcomes(job.run(name, experiment))
    return found


def robustness(job: Reproduction) -> dict[str, Any]:
    """Compare the metric at equal hours, when clients are slower than the plans assume.

    A plan is kept, follows the clients, or knew it all before: what is lost is lost to the last.
    """
    rows = []
    for dataset in [job.dataset] if job.dataset else _DATASETS:
        for scheme, replan, epochs, hours in _ROBUST:
            for delays, slower in _DELAYS.items():
                changes = {"training.epochs": epochs, **slower}
                name = f"robustness-{dataset}-{scheme['name']}-{delays.replace(' ', '-')}"
                kept, following = scheme | {"replan": 0}, scheme | {"replan": replan}
                both = job.built_in(
                    f"coldstart-{dataset}", changes | {"schemes": [kept, following]}
                )
                found = dict(zip(("kept", "follows"), _by_setting(job, name, both), strict=True))
                best = "kept"
                if delays != _RIGHT:
                    changes |= {"schemes": [kept], "fleet.foreseen": True}
                    known = job.built_in(f"coldstart-{dataset}", changes)
                    (found["foreseen"],) = _by_setting(job, f"{name}-foreseen", known)
                    best = "foreseen"
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


def _by_setting(job: Reproduction, name: str, experiment: Experiment) -> list[list[Curve]]:
    """Run an experiment; return the curves of each setting, one for every seed."""
    every = curves(job.run(name, experiment))
    return [[curve for curve in every if curve.cell == cell.id] for cell in cells(experiment)]


def _points_lost(right: float | None, reached: float | None) -> float | None:
    return None if right is None or reached is None else 100 * (right - reached)


def quality(job: Reproduction) -> dict[str, Any]:
    """Count the rounds until the objective is within 1% of exact ridge's, with a third late."""
    rows = []
    for dataset in _DATASETS:
        experiment = job.built_in(f"coldstart-{dataset}", {"schemes": list(_EXACT)})
        newton, one_shot = cells(experiment)
        every = curves(job.run(f"quality-{dataset}", experiment))
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
    document = {}
    for name in _SETTINGS:
        experiment = job.built_in(f"setting-{name}")
        found = outcomes(job.run(f"setting-{name}", experiment))
        if not job.quiet:
            results.print(Text(f"\n{experiment.title}", style="bold"))
            results.print(outcome_view(found, results.width))
        document[name] = outcome_rows(found)
    return {"settings": document}


BEYOND: dict[str, Callable[[Reproduction], dict[str, Any]]] = {
    "coldstart": cold_start,
    "robustness": robustness,
    "quality": quality,
    "settings": settings,
}
"""Reproductions beyond the paper, by name."""
