"""`codedfedl reproduce`: the paper's figures and tables."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.allocation import expected_return
from codedfedl.calibration import FIGURE_1_SECONDS, figure_1_client
from codedfedl.cli.output import print_json, results, wrote
from codedfedl.concave_pieces import piece_peaks
from codedfedl.delays import FleetDelays
from codedfedl.tables import make_folder

__all__ = ["reproduce_command"]


class Item(StrEnum):
    """What can be reproduced."""

    FIG1 = "fig1"


def reproduce_command(
    item: Annotated[Item, typer.Argument(help="fig1: the expected return of one client.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("runs"),
    alpha: Annotated[
        float, typer.Option(help="α of figure 1, which the paper does not give.")
    ] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Reproduce a figure of the paper, as SVG and PNG.

    fig1: the expected return against the load, with the optimum of every concave piece, and the
    optimised return against the waiting time (p = 0.9, τ = √3, μ = 2, t = 10). The paper does not
    give α: at the default of 20 every piece has its optimum inside.
    """
    from codedfedl.report.figures import return_figure, save_figure

    client = figure_1_client(alpha)
    make_folder(out)
    peaks = piece_peaks(client, FIGURE_1_SECONDS)
    returns = expected_return(FleetDelays(client), peaks[:, None], FIGURE_1_SECONDS)[:, 0]
    figure = return_figure(client, FIGURE_1_SECONDS)
    files = [out / f"{item}{suffix}" for suffix in (".svg", ".png")]
    for path in files:
        save_figure(figure, path)
        wrote(path)
    pieces = [
        {"transmissions": nu, "load": float(load), "expected_return": float(returned)}
        for nu, (load, returned) in enumerate(zip(peaks, returns, strict=True), start=2)
    ]
    if as_json:
        paths = [str(path) for path in files]
        print_json({"alpha": alpha, "t_s": FIGURE_1_SECONDS, "pieces": pieces, "files": paths})
    else:
        best = max(pieces, key=lambda piece: piece["expected_return"])
        results.print(
            f"best load at t = {FIGURE_1_SECONDS:g} s, α = {alpha:g}: {best['load']:.3f} points, "
            f"where {best['transmissions']} transmissions fit; it returns "
            f"{best['expected_return']:.4f} points in expectation"
        )
