"""`codedfedl reproduce private`: what a guarantee costs, in hours and in accuracy."""

import sys
from math import inf
from typing import Any

from codedfedl.cli.beyond import Reproduction
from codedfedl.cli.output import results, save_pictures, wrote
from codedfedl.errors import InputError
from codedfedl.report.reading import curves
from codedfedl.report.results import Outcome, outcomes
from codedfedl.report.rows import outcome_rows
from codedfedl.report.tables import outcome_view
from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.schemes import make_scheme

__all__ = ["private"]

_DATASETS = ("mnist", "fashion-mnist")


def private(job: Reproduction) -> dict[str, Any]:
    """Hours and accuracy at ε = 1, 3, 8 and ∞ beside the raw upload, and the picture."""
    from codedfedl.report.html import render_report
    from codedfedl.report.price import price_figure

    found: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    panels, skipped = [], []
    for dataset in _DATASETS:
        experiment = job.built_in(f"private-{dataset}")
        try:
            directory = job.run(f"private-{dataset}", experiment)
        except InputError as error:
            print(f"{dataset} is left out: {error}", file=sys.stderr)
            skipped.append(dataset)
            continue
        some = outcomes(directory)
        found += some
        rows += _rows(some, experiment)
        assert experiment.training.target is not None
        panels.append((experiment.title, experiment.training.target, curves(directory)))
        wrote(directory.write_text("report.html", render_report(directory)))
    if panels:
        save_pictures(price_figure(panels), job.out / "private")
    if found and not job.quiet:
        results.print(outcome_view(found, results.width))
    return {"rows": rows, "skipped": skipped}


def _rows(found: list[Outcome], experiment: Experiment) -> list[dict[str, Any]]:
    """Return the rows of every simulation, with what a guarantee is about."""
    settings = {cell.id: cell for cell in cells(experiment)}
    rows = []
    for outcome, row in zip(found, outcome_rows(found), strict=True):
        cell = settings[outcome.seeds[0].cell]
        made = make_scheme(cell.scheme.name, cell.scheme.settings)
        epsilon, delta = (getattr(made, name, None) for name in ("epsilon", "delta"))
        noisy = epsilon is not None and epsilon < inf
        # Without noise the sums themselves leave: nothing is private in the sense of the rest.
        disclosure = {"sums"} if epsilon is not None and not noisy else made.disclosure
        rows.append(
            row
            | {
                "epsilon": epsilon if noisy else None,
                "delta": delta if noisy else None,
                "fleet": experiment.fleet.name,
                "optimiser": None if epsilon is None else "nesterov",
                "disclosure": sorted(disclosure),
            }
        )
    return rows
