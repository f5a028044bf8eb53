"""`codedfedl reproduce`: the paper's figures and tables, and the experiments beyond them."""

from pathlib import Path
from typing import Literal

from codedfedl.cli.options import Data, Device, Json
from codedfedl.cli.output import print_json, print_views, results, say, with_resume_hint
from codedfedl.errors import InputError

Item = Literal[
    "fig1", "fig2", "fig3", "table1", "all",
    "coldstart", "robustness", "quality", "settings", "frontier", "private", "deep",
    "natural",
]  # fmt: skip


def reproduce_command(
    item: Item,
    *,
    out: Path = Path("runs"),
    seeds: int | None = None,
    alpha: float = 20.0,
    fleet: str | None = None,
    dataset: str | None = None,
    data: Data = None,
    device: Device = "cpu",
    docs: Path | None = None,
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
    accuracy at equal hours with clients slower than planned, for fixed, adaptive and oracle plans.
    quality: rounds to exact ridge regression with a third of the clients late. settings: a
    regression, a homogeneous fleet, a thousand clients.

    frontier: every scheme at its best, hours to the target against what leaves a client.

    private: hours and accuracy at ε = 1, 3, 8 and without noise, and the price of privacy in hours.

    natural: tables whose rows belong to people or hospitals, beside scikit-learn's models on all
    points in one place; test points of every client, and clients left out.

    deep: a small CNN on MNIST and Fashion-MNIST, on the paper's fleet and on phones: every scheme
    at its best, hours to three accuracies. It needs PyTorch.

    Parameters
    ----------
    item : ITEM
        What to reproduce; see above.
    out
        Folder for runs and figures.
    seeds
        Number of seeds; by default 3, or 5 for coldstart.
    alpha
        α of figure 1, which the paper does not give.
    fleet
        For frontier, one fleet: paper, homogeneous, thousand or phones; for deep, paper or phones.
    dataset
        For frontier, one data set: mnist, fashion-mnist, digits-halves or diamonds; for robustness
        and deep, one of the first two; for natural, wisdm, heart or parkinson.
    docs
        Folder in which the rows are also written as a table of Markdown, with version and date.
    """
    if seeds is None:
        seeds = 5 if item == "coldstart" else 3
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}: must be at least 1")
    if item == "natural" and dataset not in (None, "wisdm", "heart", "parkinson"):
        raise InputError(f"--dataset is {dataset!r}: natural has wisdm, heart and parkinson")
    parts = ("robustness", "natural")
    if item not in ("frontier", "deep") and (fleet or (dataset and item not in parts)):
        raise InputError("--fleet and --dataset select a part of frontier or deep: leave them out")
    if item == "robustness" and dataset not in (None, "mnist", "fashion-mnist"):
        raise InputError(f"--dataset is {dataset!r}: robustness has mnist and fashion-mnist")
    if docs is not None and item == "fig1":
        raise InputError("--docs: fig1 has no rows for a table")
    from codedfedl.cli.running import watched
    from codedfedl.reproduce import REPRODUCTIONS, Reproduction

    job = Reproduction(
        out,
        seeds,
        data,
        device,
        alpha,
        fleet,
        dataset,
        show=(lambda _: None) if as_json else print_views,
        say=say,
        width=results.width,
        watched=watched,
    )
    with with_resume_hint(out, resumes=True):
        document = REPRODUCTIONS[item](job)
    if docs is not None:
        from codedfedl.reproduce.documented import write_table

        selected = {"--fleet": fleet, "--dataset": dataset}
        chosen = [f"{option} {part}" for option, part in selected.items() if part]
        command = " ".join([f"codedfedl reproduce {item}", *chosen, f"--seeds {seeds}"])
        name = "-".join([item, *(part for part in selected.values() if part)])
        say(f"wrote {write_table(docs, name, command, document)}")
    if as_json:
        print_json(document)
