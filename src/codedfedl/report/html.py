"""`report.html`: one self-contained page for one run."""

import io
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from codedfedl.report.curves import curve_figure
from codedfedl.report.federation import federation_figure, federation_headline
from codedfedl.report.figures import save_figure
from codedfedl.report.results import curves, outcomes, read_columns, verdict, written
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal

__all__ = ["main_figure", "render_report"]

_FEDERATION = ("rounds", "refusals")


def render_report(directory: RunDirectory) -> str:
    """Return the page: who won, the curves, the clients, the set-up, and how to reproduce it."""
    experiment = directory.experiment()
    found = outcomes(directory)
    headline = " ".join(verdict(found))
    if experiment.federation is not None:
        exchanges = list(Journal(directory.path).exchanges(gradients=False))
        final = written(found[0].metric, found[0].final[0])
        reached = "" if np.isnan(found[0].final[0]) else f"{found[0].metric} {final} after "
        headline = federation_headline(found[0].setting, exchanges, reached)
    pages = Environment(
        loader=PackageLoader("codedfedl", "report"), autoescape=True, undefined=StrictUndefined
    )
    pages.filters["times"] = lambda value: "–" if value is None else f"{value:.2f}×"
    pages.filters["middle"] = _middle
    pages.filters["number"] = lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    pages.filters["score"] = lambda value: written(found[0].metric, float(value))
    pages.filters["final"] = lambda o: written(o.metric, float(np.median(o.final)))
    return pages.get_template("report.html.j2").render(
        title=experiment.title or experiment.data.name,
        outcomes=found,
        headline=headline,
        metric=found[0].metric,
        target=written(found[0].metric, found[0].target),
        curves=_svg(main_figure(directory)),
        clients=_client_rows(directory),
        setups=_setups(directory),
        config=(directory.path / "config.toml").read_text("utf-8"),
        environment=directory.environment(),
        seeds=experiment.seeds,
        federation=_federation(directory),
    )


def main_figure(directory: RunDirectory) -> Figure:
    """Draw what a run is about: curves against time, or when a federation's answers came."""
    experiment, found = directory.experiment(), curves(directory)
    if experiment.federation is not None:
        return federation_figure(
            list(Journal(directory.path).exchanges(gradients=False)), found[0].metric_name
        )
    return curve_figure(found, experiment.title, outcomes(directory)[0].target)


def _federation(directory: RunDirectory) -> dict[str, Any] | None:
    """Return what only a federation has: who was late or refused in which round."""
    if directory.experiment().federation is None:
        return None
    tables = {name: read_columns(directory.path / f"{name}.parquet") for name in _FEDERATION}
    return {
        name: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for name, columns in tables.items()
    }


def _middle(values: list[float | None]) -> str:
    met = [value for value in values if value is not None]
    if len(met) < len(values):
        return f"{len(met)} of {len(values)} seeds" if met else "not met"
    return f"{np.median(met):,.4g}"


def _svg(figure: Figure) -> str:
    buffer = io.BytesIO()
    save_figure(figure, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :]


def _client_rows(directory: RunDirectory) -> list[dict[str, Any]]:
    """Return the clients of the first seed and the first coded scheme, slowest first."""
    columns = read_columns(directory.path / "clients.parquet")
    settings = list(dict.fromkeys(columns["setting"].tolist()))
    shown = next((s for s in settings if s.startswith("coded")), settings[0])
    rows = np.flatnonzero(
        (columns["setting"] == shown) & (columns["seed"] == columns["seed"].min())
    )
    slowest = rows[np.argsort(-columns["compute_s"][rows], kind="stable")]
    return [{name: columns[name][row] for name in columns} for row in slowest[:40]]


def _setups(directory: RunDirectory) -> list[dict[str, Any]]:
    """Return every setting's set-up hours: the longest client's, median over seeds."""
    columns = read_columns(directory.path / "clients.parquet")
    found = []
    for setting in dict.fromkeys(columns["setting"].tolist()):
        longest = []
        for seed in np.unique(columns["seed"]):
            rows = (columns["setting"] == setting) & (columns["seed"] == seed)
            together = columns["setup_compute_s"][rows] + columns["setup_upload_s"][rows]
            slowest = int(np.argmax(together))
            parts = ("setup_compute_s", "setup_upload_s")
            longest.append([columns[part][rows][slowest] / 3600 for part in parts])
        compute, upload = np.median(longest, axis=0)
        found.append({"setting": setting, "compute": compute, "upload": upload})
    return found
