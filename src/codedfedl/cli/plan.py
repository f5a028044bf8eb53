"""`codedfedl plan`: from a fleet's delays to loads, a deadline and parity."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Json, grouped
from codedfedl.errors import InputError
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination

__all__ = ["OutputOptions", "ParityOptions", "WorkOptions", "plan_command"]

PARITY, WORK = "How much parity (one of these)", "Work of the clients in a device file"


@dataclass(frozen=True)
class ParityOptions:
    """How much parity: given, or chosen by one of several plans."""

    redundancy: Annotated[
        float | None,
        typer.Option(
            help="Parity rows as a fraction of all points, in (0, 1); by default 0.1.",
            rich_help_panel=PARITY,
        ),
    ] = None
    rows: Annotated[int | None, typer.Option(help="Parity rows.", rich_help_panel=PARITY)] = None
    server_rate: Annotated[
        float | None,
        typer.Option(
            help="Choose the rows: treat the server as a node with this many rows per second.",
            rich_help_panel=PARITY,
        ),
    ] = None
    max_rows: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of rows at the server; by default the number of points.",
            rich_help_panel=PARITY,
        ),
    ] = None
    server_alpha: Annotated[float, typer.Option(help="The server's α.", rich_help_panel=PARITY)] = (
        2.0
    )
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Choose the rows: minimise the total time of set-up and this many rounds; also "
            "shows what the paper's deadline rule costs.",
            rich_help_panel=PARITY,
        ),
    ] = None
    excess: Annotated[
        float | None,
        typer.Option(
            help="Plan a cold start with coded-newton instead: target relative excess of the "
            "objective over its optimum, such as 0.2.",
            rich_help_panel=PARITY,
        ),
    ] = None
    within: Annotated[
        float | None,
        typer.Option(
            help="Choose the feature map of a cold start: the most accurate one trained within "
            "this many hours, to --excess (by default 0.2).",
            rich_help_panel=PARITY,
        ),
    ] = None


@dataclass(frozen=True)
class WorkOptions:
    """What clients have and compute, as far as a file does not say."""

    clients: Annotated[
        int | None,
        typer.Option(help="Clients of a built-in fleet: 30 by default.", rich_help_panel=WORK),
    ] = None
    points: Annotated[
        float | None,
        typer.Option(
            help="Points per round of every client, if the file has no such column.",
            rich_help_panel=WORK,
        ),
    ] = None
    features: Annotated[
        int, typer.Option(help="Features of the model (q).", rich_help_panel=WORK)
    ] = 2000
    labels: Annotated[int, typer.Option(help="Label columns (c).", rich_help_panel=WORK)] = 10
    bits: Annotated[int, typer.Option(help="Bits per value.", rich_help_panel=WORK)] = 32
    packet_overhead: Annotated[
        float, typer.Option(help="Protocol overhead, as a share of a packet.", rich_help_panel=WORK)
    ] = 0.1
    inputs: Annotated[
        int,
        typer.Option(
            help="Values in a raw point, for --rounds and --excess.", rich_help_panel=WORK
        ),
    ] = 784
    image: Annotated[
        str | None,
        typer.Option(
            help="HEIGHT,WIDTH,CHANNELS of the images, for --within.",
            rich_help_panel=WORK,
        ),
    ] = None
    batches: Annotated[
        int, typer.Option(help="Mini-batches, for --rounds and --excess.", rich_help_panel=WORK)
    ] = 5
    step: Annotated[
        float,
        typer.Option(help="Step size of gradient descent, for --rounds.", rich_help_panel=WORK),
    ] = 6.0


@dataclass(frozen=True)
class OutputOptions:
    """Where the plan goes."""

    out: Annotated[Path | None, typer.Option(help="Write a row per client (.parquet or .csv).")] = (
        None
    )
    figure: Annotated[Path | None, typer.Option(help="Plot the plan (.png, .svg or .pdf).")] = None
    as_json: Json = False

    def check(self, fleet: str) -> None:
        """Refuse files that could not be written, and the fleet file itself."""
        if self.out is not None:
            check_destination(self.out, TABLE_SUFFIXES)
            if self.out.resolve() == Path(fleet).resolve():
                raise InputError(f"--out {self.out} is the fleet file itself: choose another")
        if self.figure is not None:
            check_destination(self.figure, FIGURE_SUFFIXES)


@grouped
def plan_command(
    fleet: Annotated[
        str, typer.Argument(help="A fleet or device file (.csv, .parquet), 'paper', or 'phones'.")
    ],
    parity: ParityOptions,
    work: WorkOptions,
    *,
    seed: Annotated[int, typer.Option(help="Seed of a built-in fleet.")] = 0,
    output: OutputOptions,
) -> None:
    """Choose how long each round waits and how much each client does.

    FLEET has the columns client, points, rate (points per second), alpha, packet_time (seconds)
    and erasure, and may have packet_time_up, erasure_up, overhead (seconds per round) and
    availability. `codedfedl fit` writes such a file, or one of measured delays (client, points,
    per_point, fixed), which also works here. A device file has client, mac_rate, bit_rate, alpha
    and erasure instead, and may have points.

    Examples: `codedfedl plan paper`, `codedfedl plan my.csv --redundancy 0.2 --figure plan.png`,
    `codedfedl plan my.csv --server-rate 1000 --json`, `codedfedl plan paper --excess 0.2`.
    """
    from codedfedl.cli.planning import show_plan

    output.check(fleet)
    show_plan(fleet, parity, work, seed, output)
