"""`codedfedl federate node`, `helper` and `ledger`: what the owners of nodes and helpers run."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Json
from codedfedl.cli.output import exit_on_signals, json_number, say, show
from codedfedl.errors import InputError
from codedfedl.federate.node.config import Access, NodeConfig

_HELPER_HOME = Path.home() / ".local" / "share" / "codedfedl" / "helper"


def node_command(
    *,
    access: Access,
    config: NodeConfig,
    settings: Annotated[tuple[str, ...], typer.Option("--set")] = (),
) -> None:
    """Take part in federations, with the installed code only.

    Ends when the server refuses its key or its SuperNode ends: let a supervisor restart it.

    Parameters
    ----------
    settings : KEY=VALUE
        A key for the loader; may be repeated.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.flower.supernode import run_node

    check_name(config.name)
    access.check()
    if config.helper is None and (config.vault or config.epsilon_cap is not None or config.parity):
        raise InputError(
            "--vault, --epsilon-cap and --parity are for secure sums: give --helper too"
        )
    config = replace(config.resolved(), settings=dict(_pair(text) for text in settings))
    with exit_on_signals():
        code = run_node(access, config, say)
    raise typer.Exit(code)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no value: write KEY=VALUE")
    return key.strip(), value


def helper_command(
    *, access: Access, name: str = "helper", home: Path = _HELPER_HOME, clients: Path | None = None
) -> None:
    """Help federations to compute secure sums: send the server the sum of masks, minus noise.

    Run it on a separate machine, under an operator who does not collude with the server's. The
    first start creates masks.key and masks.pub in --home; give masks.pub to every client, by a
    channel that the server cannot change.

    Parameters
    ----------
    name
        The name that the operator registered.
    home
        A permanent folder for its mask key and answers.
    clients
        A folder with the masks.pub of every client, as NAME.pub.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.flower.supernode import run_answerer
    from codedfedl.federate.secure.helper import HelperNode

    check_name(name)
    access.check()
    if clients is not None and not clients.is_dir():
        raise InputError(f"--clients {clients} is not a folder: put every NAME.pub into one")
    node = HelperNode(name, home.resolve(), clients)
    say(f"clients pin {home / 'masks.pub'}")
    with exit_on_signals():
        code = run_answerer(access, name, node, node.home, say)
    raise typer.Exit(code)


def ledger_command(vault: Path, *, delta: float = 1e-5, as_json: Json = False) -> None:
    """Show the privacy budget that a node has spent per data set, over all federations.

    Epsilon is for one record replaced by nothing, and holds while server and helper do not
    collude. A ledger that does not add up is refused.

    Parameters
    ----------
    vault
        The node's folder, as given to --vault.
    delta
        The δ at which ε is stated.
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
    sentences = []
    for row in rows:
        epsilon = "infinite" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        name = row["data"] or "without a name, which count for every data set"
        sentences.append(
            f"data {name}: epsilon {epsilon} at delta {delta:g}, {ADJACENCY}; "
            f"{row['sums']} sums of {row['federations']} federations"
        )
    show(as_json, {"vault": str(vault), "data_sets": rows}, *sentences)
