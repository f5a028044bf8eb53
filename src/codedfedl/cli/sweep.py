"""`codedfedl sweep`: a grid of settings, and which of them is best."""

from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import (
    Data,
    Device,
    Json,
    Overrides,
    Resume,
    Track,
    Trust,
    Workers,
    grouped,
    known_experiments,
)

__all__ = ["sweep_command"]


@grouped
def sweep_command(
    workers: Workers,
    experiment: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of a built-in experiment.",
            autocompletion=known_experiments,
        ),
    ] = "redundancy",
    fleet: Annotated[
        Path | None, typer.Option(help="Your fleet or device file (.csv, .parquet).")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="An axis of the grid, such as redundancy=0.1,0.2 or erasure=0.1,0.3; repeat it "
            "for more. In place of the experiment's own grid.",
            metavar="KEY=V1,V2",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds; by default those of the experiment.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/sweep"),
    overrides: Overrides = None,
    data: Data = None,
    device: Device = "cpu",
    resume: Resume = False,
    track: Track = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run every combination of some settings, and find the best.

    `codedfedl sweep --fleet my.csv` finds the best redundancy for a fleet, on digits; with
    `--set data.name=table.csv --set data.label=kind`, on your own table, with a step and a target
    that suit it. KEY is any key of an experiment (erasure, k1, k2, clients, sigma, step, …; with
    its table where ambiguous, such as training.step), a setting of a scheme (redundancy, drop,
    mixing, …), scheme or seeds. Settings that share their data run in lockstep.

    Writes sweep.parquet (a row per setting and seed), sweep.png, report.html and the other files of
    a run directory to --out. Continue an interrupted sweep with --resume. With --jobs or --dask,
    seeds and settings that do not share their data run at the same time.
    """
    from codedfedl.cli.sweeping import sweep, with_grid

    chosen = with_grid(experiment, overrides, vary, seeds, fleet, trust)
    sweep(chosen, out, data, device, resume, as_json, workers, track or [])
