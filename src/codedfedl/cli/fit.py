"""`codedfedl fit`: from measured times to a fleet."""

from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Json
from codedfedl.cli.output import messages, print_json, progress, results, wrote
from codedfedl.errors import InputError
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination

__all__ = ["fit_command"]


def fit_command(
    traces: Annotated[Path, typer.Argument(help="Measured times (.csv, .parquet).")],
    points: Annotated[
        float | None,
        typer.Option(help="Points per round of every client; by default the largest load."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the fleet (.csv or .parquet).")] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Write the measured delays, for clients that the model does not fit."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Plot measured against fitted times (.png, .svg or .pdf).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate a fleet from measured times, with intervals, and test the fit.

    TRACES has one row per request to a client: client, load (points) and total
    (seconds), or down, compute and up instead of or beside total; and may have retries_down,
    retries_up and waited (when the server gave up). Leave the times empty if no reply arrived.
    Measure at two or more loads.

    Examples: `codedfedl fit times.csv --out fleet.csv --figure fit.png`, then `codedfedl plan
    fleet.csv`; or `codedfedl fit times.csv --measured delays.csv`, then `codedfedl plan delays.csv`
    where the model does not fit.
    """
    from codedfedl.fitting.fit import fit
    from codedfedl.fitting.traces import read_traces
    from codedfedl.report.fleet_tables import fit_view

    _check_destinations(traces, out, measured, figure)
    given = read_traces(traces)
    with progress("fitting"):
        found = fit(given, points)
    if out is not None:
        found.fleet.write(out)
        wrote(out)
    if measured is not None:
        found.measured.write(measured)
        wrote(measured)
    if figure is not None:
        from codedfedl.report.figures import save_figure
        from codedfedl.report.fleet_figures import fit_figure

        save_figure(fit_figure(found), figure)
        wrote(figure)
    if as_json:
        print_json(found.document() | {"fleet": None if out is None else str(out)})
    else:
        results.print(fit_view(found))
    for kind, sentences in (("note", found.notes), ("warning", found.warnings)):
        for sentence in sentences:
            messages.print(f"{kind}: {sentence}", soft_wrap=True)


def _check_destinations(
    traces: Path, out: Path | None, measured: Path | None, figure: Path | None
) -> None:
    """Refuse files that could not be written, or that another would overwrite."""
    taken = {traces.resolve(): "the file of measured times itself"}
    for option, path in (("--out", out), ("--measured", measured), ("--figure", figure)):
        if path is None:
            continue
        check_destination(path, FIGURE_SUFFIXES if option == "--figure" else TABLE_SUFFIXES)
        if path.resolve() in taken:
            raise InputError(f"{option} {path} is {taken[path.resolve()]}: choose another")
        taken[path.resolve()] = f"{option}'s file too"
