"""The paper's figures and its Table 1, and what goes beyond them."""

from pathlib import Path
from typing import Any

from codedfedl.cli.beyond import BEYOND, Reproduction
from codedfedl.cli.frontier import frontier
from codedfedl.cli.output import progress, results, save_pictures, wrote
from codedfedl.cli.private import private
from codedfedl.cli.running import run_experiments
from codedfedl.experiments import built_in
from codedfedl.fleet.built_in import FIGURE_1_SECONDS, figure_1_client
from codedfedl.io.files import make_folder
from codedfedl.planning.allocation import expected_return
from codedfedl.planning.concave_pieces import piece_peaks
from codedfedl.planning.gains import gain_by_alpha
from codedfedl.report.reading import curves
from codedfedl.report.results import Outcome, outcomes
from codedfedl.report.tables import outcome_rows, outcome_view
from codedfedl.runs.directory import RunDirectory

__all__ = ["reproduce_beyond", "reproduce_paper"]

_DATASETS: dict[str, list[str]] = {
    "fig1": [],
    "fig2": ["mnist"],
    "fig3": ["fashion-mnist"],
    "table1": ["mnist", "fashion-mnist"],
    "all": ["mnist", "fashion-mnist"],
}
_BEYOND = BEYOND | {"frontier": frontier, "private": private}
_FIGURES = {"mnist": "fig2", "fashion-mnist": "fig3"}


def reproduce_beyond(
    item: str,
    out: Path,
    seeds: int,
    data: str | None,
    device: str,
    as_json: bool,
    fleet: str | None,
    dataset: str | None,
) -> dict[str, Any]:
    """Run one of the experiments that go beyond the paper."""
    return _BEYOND[item](Reproduction(out, seeds, data, device, as_json, fleet, dataset))


def reproduce_paper(
    item: str, out: Path, seeds: int, alpha: float, data: str | None, device: str, as_json: bool
) -> dict[str, Any]:
    """Draw the paper's figures, and run the experiments of its Table 1."""
    client = figure_1_client(alpha)
    document: dict[str, Any] = {}
    if item in ("fig1", "all"):
        document |= _fig1(client, out, quiet=as_json)
    found: list[Outcome] = []
    changes = {"seeds": list(range(seeds))}
    experiments = {name: built_in(f"table1-{name}", changes) for name in _DATASETS[item]}
    for name, directory in run_experiments(experiments, out, data, device).items():
        found += outcomes(directory)
        _draw_curves(directory, out / _FIGURES[name])
    if found:
        document |= _table1(found, quiet=as_json)
    return document


def _table1(found: list[Outcome], *, quiet: bool) -> dict[str, Any]:
    with progress("gains for other α"):
        gains = gain_by_alpha()
    if not quiet:
        results.print(outcome_view(found, results.width))
        listed = ", ".join(f"{gain:.2f} at {alpha:g}" for alpha, gain in gains.items())
        results.print(
            "\nα = 2 and 2·q·c multiply-accumulates per point are not in the paper: they were "
            f"fitted to its Table 1.\nThe gain per round at 10% for other α: {listed}.",
            soft_wrap=True,
        )
    return {"rows": outcome_rows(found), "gain_by_alpha": {str(a): g for a, g in gains.items()}}


def _draw_curves(directory: RunDirectory, stem: Path) -> None:
    from codedfedl.report.curves import curve_figure
    from codedfedl.report.html import render_report

    experiment = directory.experiment()
    figure = curve_figure(curves(directory), experiment.title, experiment.training.target)
    save_pictures(figure, stem)
    wrote(directory.write_text("report.html", render_report(directory)))


def _fig1(client: Any, out: Path, *, quiet: bool) -> dict[str, Any]:
    from codedfedl.report.fleet_figures import return_figure

    make_folder(out)
    peaks = piece_peaks(client, FIGURE_1_SECONDS)
    returns = expected_return(client, peaks[:, None], FIGURE_1_SECONDS)[:, 0]
    files = save_pictures(return_figure(client, FIGURE_1_SECONDS), out / "fig1")
    pieces = [
        {"transmissions": nu, "load": float(load), "expected_return": float(returned)}
        for nu, (load, returned) in enumerate(zip(peaks, returns, strict=True), start=2)
    ]
    alpha = float(client.alpha[0])
    if not quiet:
        best = max(pieces, key=lambda piece: piece["expected_return"])
        results.print(
            f"best load at t = {FIGURE_1_SECONDS:g} s, α = {alpha:g}: {best['load']:.3f} points, "
            f"where {best['transmissions']} transmissions fit; it returns "
            f"{best['expected_return']:.4f} points in expectation"
        )
    paths = [str(path) for path in files]
    return {"alpha": alpha, "t_s": FIGURE_1_SECONDS, "pieces": pieces, "files": paths}
