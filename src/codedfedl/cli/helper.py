"""`codedfedl federate helper`, which adds up masks, and `ledger`: what a node has spent."""

from math import inf
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Json
from codedfedl.cli.output import json_number, print_json, results
from codedfedl.cli.serve import Authority, check_access, leave_on_signals, say
from codedfedl.errors import InputError
from codedfedl.federate.node_config import NodeConfig

__all__ = ["helper_command", "ledger_command"]

_HOME = Path.home() / ".local" / "share" / "codedfedl" / "helper"


def helper_command(
    superlink: Annotated[str, typer.Option(help="The server's gate, as host:port.")],
    name: Annotated[str, typer.Option(help="The name that the operator registered.")] = "helper",
    authority: Authority = None,
    key: Annotated[Path | None, typer.Option(help="The helper's private key for the gate.")] = None,
    home: Annotated[
        Path, typer.Option(help="A permanent folder for its mask key and answers.")
    ] = _HOME,
    clients: Annotated[
        Path | None,
        typer.Option(help="A folder with the masks.pub of every client, as NAME.pub."),
    ] = None,
) -> None:
    """Help federations to compute secure sums: send the server the sum of masks, minus noise.

    Run it on a separate machine, under an operator who does not collude with the server's. The
    first start creates masks.key and masks.pub in --home; give masks.pub to every client, by a
    channel that the server cannot change.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.flower.supernode import NodeSettings, run_answerer
    from codedfedl.federate.helper import HelperNode

    check_name(name)
    check_access(superlink, authority, key)
    if clients is not None and not clients.is_dir():
        raise InputError(f"--clients {clients} is not a folder: put every NAME.pub into one")
    node = HelperNode(name, home.resolve(), clients)
    say(f"clients pin {home / 'masks.pub'}")
    leave_on_signals()
    settings = NodeSettings(superlink, NodeConfig(name), authority, key)
    raise typer.Exit(run_answerer(settings, node, node.home, say))


def ledger_command(
    vault: Annotated[Path, typer.Argument(help="The node's folder, as given to --vault.")],
    delta: Annotated[float, typer.Option(help="The δ at which ε is stated.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Show the privacy budget that a node has spent per data set, over all federations.

    Epsilon is for one record replaced by nothing, and holds while server and helper do not
    collude. A ledger that does not add up is refused.
    """
    from codedfedl.privacy.accounting import ADJACENCY
    from codedfedl.privacy.ledger import Ledger

    path = vault / "ledger.json"
    if not path.is_file():
        raise InputError(f"{vault} has no ledger.json: nothing was spent, or it is another folder")
    ledger = Ledger(path, inf, delta)
    rows = [
        {
            "data": data,
            "content": sorted({entry.content for entry in entries}),
            "epsilon": json_number(ledger.spent(data)),
            "delta": delta,
            "adjacency": ADJACENCY,
            "federations": len(entries),
            "sums": sum(len(entry.sums) for entry in entries),
        }
        for data, entries in sorted(ledger.data_sets().items())
    ]
    if as_json:
        print_json({"vault": str(vault), "data_sets": rows})
        return
    for row in rows:
        told = "infinite" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        name = row["data"] or "without a name, which count for every data set"
        results.print(
            f"data {name}: epsilon {told} at delta {delta:g}, {ADJACENCY}; "
            f"{row['sums']} sums of {row['federations']} federations",
            soft_wrap=True,
        )
