"""`codedfedl fit`: from measured times to a fleet."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from codedfedl.cli.output import messages, print_json, progress, results, wrote
from codedfedl.errors import InputError
from codedfedl.fitting.fit import Fit, fit
from codedfedl.fitting.traces import read_traces
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination

__all__ = ["fit_command"]

_COLUMNS = {
    "rate": "rate, points/s",
    "alpha": "alpha",
    "overhead": "overhead, s",
    "packet_time": "packet, s",
    "erasure": "erasure",
    "packet_time_up": "packet up, s",
    "erasure_up": "erasure up",
    "availability": "availability",
}


def fit_command(
    traces: Annotated[Path, typer.Argument(help="Measured times (.csv, .parquet).")],
    points: Annotated[
        float | None,
        typer.Option(help="Points per round of every client; the largest load if not said."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the fleet (.csv or .parquet).")] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Write the delays as measured, for clients that the model does not fit."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw measured against fitted (.png, .svg or .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Estimate a fleet from measured times, with intervals, and say whether the model fits.

    TRACES has a row for each time that a client was asked: client, load (points) and total
    (seconds), or down, compute and up instead of total or beside it; and may have retries_down,
    retries_up and waited (when the server gave up). Leave the times empty where no reply came.
    Measure at two loads or more.

    Examples: `codedfedl fit times.csv --out fleet.csv --figure fit.png`, then `codedfedl plan
    fleet.csv`; or `codedfedl fit times.csv --measured delays.csv`, then `codedfedl plan delays.csv`
    where the model does not fit.
    """
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
        from codedfedl.report.fit_figure import fit_figure

        save_figure(fit_figure(found), figure)
        wrote(figure)
    if as_json:
        print_json(found.document() | {"fleet": None if out is None else str(out)})
    else:
        results.print(_table(found))
    for kind, sentences in (("note", found.notes), ("warning", found.warnings)):
        for sentence in sentences:
            messages.print(Text(f"{kind}: {sentence}"), soft_wrap=True)


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


def _table(found: Fit) -> Table:
    """Return a row per client: estimates, with their intervals below."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client")
    table.add_column("replies", justify="right")
    shown = [name for name in _COLUMNS if _is_told(found, name)]
    for name in shown:
        table.add_column(_COLUMNS[name], justify="right")
    table.add_column("does the model fit?")
    for j, client in enumerate(found.fleet.client):
        came = int(found.n[j] - found.never_came[j])
        cells = [_cell(found, name, j) for name in shown]
        table.add_row(Text(str(client)), f"{came}/{found.n[j]}", *cells, _verdict(found, j))
    return table


def _is_told(found: Fit, name: str) -> bool:
    return not np.isnan(found.intervals[name]).all()


def _cell(found: Fit, name: str, j: int) -> Text:
    low, high = found.intervals[name][j]
    if np.isnan(low) and not getattr(found.fleet, name)[j]:
        return Text("–")
    without = high == np.inf or (name == "alpha" and found.intervals["rate"][j, 1] == np.inf)
    estimate = Text("not told" if without else f"{getattr(found.fleet, name)[j]:.3g}")
    interval = "" if np.isnan(low) else f"\n{low:.3g} – {high:.3g}"
    return estimate + Text(interval, style="dim")


def _verdict(found: Fit, j: int) -> Text:
    p = found.p_value[j]
    if found.never_came[j] == found.n[j]:
        return Text("never answered", style="red")
    if np.isnan(p):
        return Text("too few to judge", style="yellow")
    return Text(f"yes, p = {p:.2g}" if found.fits[j] else f"no, p = {p:.2g}", _STYLE[found.fits[j]])


_STYLE = {True: "green", False: "red"}
