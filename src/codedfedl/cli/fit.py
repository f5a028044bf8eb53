"""`codedfedl fit`: from measured times to a fleet."""

from pathlib import Path

from codedfedl.cli.options import Json
from codedfedl.cli.output import check_outputs, progress, say, show, wrote


def fit_command(
    traces: Path,
    *,
    points: float | None = None,
    out: Path | None = None,
    measured: Path | None = None,
    figure: Path | None = None,
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

    Parameters
    ----------
    traces
        Measured times (.csv, .parquet).
    points
        Points per round of every client; by default the largest load.
    out
        Write the fleet (.csv or .parquet).
    measured
        Write the measured delays, for clients that the model does not fit.
    figure
        Plot measured against fitted times (.png, .svg or .pdf).
    """
    from codedfedl.fitting.fit import fit
    from codedfedl.fitting.traces import read_traces
    from codedfedl.report.fleet_tables import fit_rows

    taken = {traces: "the file of measured times itself"}
    check_outputs(taken, out=out, measured=measured, figure=figure)
    times = read_traces(traces)
    with progress("fitting"):
        fitted = fit(times, points)
    for path, clients in ((out, fitted.fleet), (measured, fitted.measured)):
        if path is not None:
            clients.write(path)
            wrote(path)
    if figure is not None:
        from codedfedl.report.figures import save_figure
        from codedfedl.report.fleet_figures import fit_figure

        save_figure(fit_figure(fitted), figure)
        wrote(figure)
    show(as_json, fitted.document() | {"fleet": out and str(out)}, fit_rows(fitted))
    for kind, sentences in (("note", fitted.notes), ("warning", fitted.warnings)):
        for sentence in sentences:
            say(f"{kind}: {sentence}")
