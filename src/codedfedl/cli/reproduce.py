"""`codedfedl reproduce`: the paper's figures and tables."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Data, Device, Json
from codedfedl.cli.output import print_json
from codedfedl.errors import InputError

__all__ = ["reproduce_command"]


class Item(StrEnum):
    """What can be reproduced."""

    FIG1 = "fig1"
    FIG2 = "fig2"
    FIG3 = "fig3"
    TABLE1 = "table1"
    ALL = "all"
    COLDSTART = "coldstart"
    ROBUSTNESS = "robustness"
    QUALITY = "quality"
    SETTINGS = "settings"
    FRONTIER = "frontier"
    PRIVATE = "private"


_PAPER = (Item.FIG1, Item.FIG2, Item.FIG3, Item.TABLE1, Item.ALL)


def reproduce_command(
    item: Annotated[Item, typer.Argument(help="What to reproduce; see above.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for runs and figures.")] = Path("runs"),
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds; by default 3, or 5 for coldstart.", show_default=False),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="α of figure 1, which the paper does not give.")
    ] = 20.0,
    fleet: Annotated[
        str | None,
        typer.Option(help="For frontier, one fleet: paper, homogeneous, thousand or phones."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="For frontier, one data set: mnist, fashion-mnist, digits-halves or diamonds; for "
            "robustness, one of the first two."
        ),
    ] = None,
    data: Data = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Reproduce the paper's figures and Table 1, and the experiments that go beyond them.

    fig1: the expected return against the load, with the optimum of every concave piece, and the
    optimised return against the waiting time. The paper does not give α: at the default of 20 every
    piece has an interior optimum.

    fig2, fig3, table1: all schemes on MNIST and Fashion-MNIST, from sorted shards on the paper's
    fleet. An interrupted run in --out is continued; a finished one is not run again. Experiments of
    one command run at the same time, one for each core.

    coldstart: every scheme's hours to the paper's accuracy with the set-up charged. robustness:
    accuracy at equal hours with clients slower than planned, where the plan is kept, follows them,
    or knew it before. quality: rounds to exact ridge regression with a
    third of the clients late. settings: a regression, a homogeneous fleet, a thousand clients.

    frontier: every scheme at its best, hours to the target against what leaves a client.

    private: hours and accuracy at ε = 1, 3, 8 and without noise, and the price of privacy in hours.
    """
    from codedfedl.cli.paper import reproduce_beyond, reproduce_paper

    if seeds is None:
        seeds = 5 if item is Item.COLDSTART else 3
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}: must be at least 1")
    if item is not Item.FRONTIER and (fleet or (dataset and item is not Item.ROBUSTNESS)):
        raise InputError("--fleet and --dataset select a part of frontier: leave them out")
    if item is Item.ROBUSTNESS and dataset not in (None, "mnist", "fashion-mnist"):
        raise InputError(f"--dataset is {dataset!r}: robustness has mnist and fashion-mnist")
    if item in _PAPER:
        document = reproduce_paper(item, out, seeds, alpha, data, device, as_json)
    else:
        document = reproduce_beyond(item, out, seeds, data, device, as_json, fleet, dataset)
    if as_json:
        print_json(document)
