"""`codedfedl reproduce private`: what a guarantee costs, in hours and in accuracy."""

from math import inf
from typing import Any

from codedfedl.cli.beyond import Reproduction
from codedfedl.cli.output import results, save_pictures, wrote
from codedfedl.report.reading import curves
from codedfedl.report.results import Outcome, outcomes
from codedfedl.report.tables import outcome_rows, outcome_view
from codedfedl.schemes import make_scheme

__all__ = ["private"]

_DATASETS = ("mnist", "fashion-mnist")


def private(job: Reproduction) -> dict[str, Any]:
    """Hours and accuracy at ε = 1, 3, 8 and ∞ beside the raw upload, and the picture."""
    from codedfedl.report.curves import price_figure
    from codedfedl.report.html import render_report

    every = {f"private-{dataset}": job.built_in(f"private-{dataset}") for dataset in _DATASETS}
    experiments = {name: one for name, one in every.items() if job.has(one.data.name)}
    skipped = [name.removeprefix("private-") for name in every if name not in experiments]
    found: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    panels = []
    for name, directory in job.run(experiments).items():
        experiment = experiments[name]
        some = outcomes(directory)
        found += some
        rows += _rows(some)
        assert experiment.training.target is not None
        panels.append((experiment.title, experiment.training.target, curves(directory)))
        wrote(directory.write_text("report.html", render_report(directory)))
    if panels:
        save_pictures(price_figure(panels), job.out / "private")
    if found and not job.quiet:
        results.print(outcome_view(found, results.width))
    return {"rows": rows, "skipped": skipped}


def _rows(found: list[Outcome]) -> list[dict[str, Any]]:
    """Return the rows of every simulation, with ε and δ."""
    rows = []
    for outcome, row in zip(found, outcome_rows(found), strict=True):
        settings = outcome.known.scheme_settings if outcome.known else {}
        made = make_scheme(outcome.scheme, settings)
        epsilon, delta = (getattr(made, name, None) for name in ("epsilon", "delta"))
        own = {"epsilon": epsilon, "delta": delta}
        if epsilon == inf:  # no noise: the sums themselves leave
            own = {"epsilon": None, "delta": None, "disclosure": ["sums"]}
        rows.append(row | own)
    return rows
