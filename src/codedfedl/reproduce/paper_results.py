"""The paper's figures 1 to 3 and its Table 1."""

from typing import Any

from codedfedl.fleet.built_in import FIGURE_1_SECONDS, figure_1_client, paper_devices
from codedfedl.fleet.devices import Workload
from codedfedl.fleet.maximum import expected_maximum
from codedfedl.io.files import make_folder
from codedfedl.planning.allocation import expected_return
from codedfedl.planning.concave_pieces import piece_peaks
from codedfedl.planning.plan import plan
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.reading import curves
from codedfedl.report.results import Outcome, outcomes
from codedfedl.reproduce.reproduction import PAPER_DATASETS, Reproduction

_FIGURES = {"mnist": "fig2", "fashion-mnist": "fig3"}


def figure_1(job: Reproduction) -> dict[str, Any]:
    """Draw the expected return against the load, and the best return against the time."""
    from codedfedl.report.fleet_figures import return_figure

    client = figure_1_client(job.alpha)
    make_folder(job.out)
    peaks = piece_peaks(client, FIGURE_1_SECONDS)
    returns = expected_return(client, peaks[:, None], FIGURE_1_SECONDS)[:, 0]
    pieces = [
        {"transmissions": nu, "load": float(load), "expected_return": float(returned)}
        for nu, (load, returned) in enumerate(zip(peaks, returns, strict=True), start=2)
    ]
    alpha = float(client.alpha[0])
    files = job.save_pictures(return_figure(client, FIGURE_1_SECONDS), "fig1")
    best = max(pieces, key=lambda piece: piece["expected_return"])
    job.show(
        f"best load at t = {FIGURE_1_SECONDS:g} s, α = {alpha:g}: {best['load']:.3f} points, "
        f"where {best['transmissions']} transmissions fit; it returns "
        f"{best['expected_return']:.4f} points in expectation"
    )
    return {"alpha": alpha, "t_s": FIGURE_1_SECONDS, "pieces": pieces, "files": files}


def figure_1_and_table(job: Reproduction) -> dict[str, Any]:
    """Draw all of the paper's figures, and run its Table 1."""
    return figure_1(job) | table_1(job)


def table_1(job: Reproduction, datasets: tuple[str, ...] = PAPER_DATASETS) -> dict[str, Any]:
    """Run all schemes on the paper's data, and draw their curves: figures 2 and 3."""
    from codedfedl.report.curves import curve_figure

    every: list[Outcome] = []
    experiments = {dataset: job.built_in(f"table1-{dataset}") for dataset in datasets}
    for dataset, directory in job.run(experiments).items():
        every += outcomes(directory)
        experiment = directory.experiment()
        figure = curve_figure(curves(directory), experiment.title, experiment.training.target)
        job.save_pictures(figure, _FIGURES[dataset])
        job.write_report(directory)
    gains = gain_by_alpha()
    listed = ", ".join(f"{gain:.2f} at {alpha:g}" for alpha, gain in gains.items())
    job.show_outcomes(every)
    job.show(
        "\nα = 2 and 2·q·c multiply-accumulates per point are not in the paper: they were "
        f"fitted to its Table 1.\nThe gain per round at 10% for other α: {listed}."
    )
    return {"rows": outcome_rows(every), "gain_by_alpha": {str(a): g for a, g in gains.items()}}


def gain_by_alpha() -> dict[float, float]:
    """Return the gain per round over waiting for all, for several values of the fitted constant."""
    gains = {}
    for alpha in (0.5, 1.0, 2.0, 4.0, 20.0):
        fleet = paper_devices(alpha=alpha).fleet(Workload(), 400)
        gains[alpha] = expected_maximum(fleet, fleet.points) / plan(fleet, 0.1).deadline
    return gains
