"""`codedfedl federate node`, `helper` and `ledger`: what the owners of nodes and helpers run."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Json, Log
from codedfedl.cli.output import exit_on_signals, json_number, log_lines, show
from codedfedl.errors import InputError
from codedfedl.federate.node.config import Access, HelperConfig, NodeConfig, vault_of, with_file

File = Annotated[Path | None, typer.Argument(help="A TOML file with options as keys.")]


def node_command(
    file: File = None,
    *,
    access: Access,
    config: NodeConfig,
    settings: Annotated[tuple[str, ...], typer.Option("--set")] = (),
    log: Log = "text",
) -> None:
    """Take part in federations, with the installed code only, until it is ended.

    `codedfedl federate init` writes its file, node.toml; options on the command line replace what
    the file says. It connects again by itself when the server was away or refused its key.

    Parameters
    ----------
    settings : KEY=VALUE
        A key for the loader; may be repeated. In the file, a table of this name.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.flower.answering import run_node

    access, config = with_file(file, access, config)
    check_name(config.name)
    access.check()
    if config.helper is None and (config.vault or config.epsilon_cap is not None or config.parity):
        raise InputError("vault, epsilon_cap and parity are for secure sums: give --helper too")
    settings_given = dict(config.settings) | dict(_pair(text) for text in settings)
    config = replace(config.resolved(), settings=settings_given)
    with exit_on_signals():
        run_node(access, config, log_lines(config.name, log))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no value: write KEY=VALUE")
    return key.strip(), value


def helper_command(
    file: File = None, *, access: Access, config: HelperConfig, log: Log = "text"
) -> None:
    """Help federations to compute secure sums: send the server the sum of masks, minus noise.

    Run it on a separate machine, under an operator who does not collude with the server's. The
    first start creates masks.key and masks.pub in --home; give masks.pub to every client, by a
    channel that the server cannot change.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.flower.answering import run_answerer
    from codedfedl.federate.secure.helper import HelperNode

    access, config = with_file(file, access, config)
    check_name(config.name)
    access.check()
    if config.clients is not None and not config.clients.is_dir():
        raise InputError(f"--clients {config.clients} is not a folder: put every NAME.pub into one")
    node = HelperNode(config.name, config.home.resolve(), config.clients)
    say = log_lines(config.name, log)
    say(f"clients pin {config.home / 'masks.pub'}")
    with exit_on_signals():
        run_answerer(access, config.name, node, node.home, say)


def ledger_command(node: str, *, delta: float = 1e-5, as_json: Json = False) -> None:
    """Show the privacy budget that a node has spent per data set, over all federations.

    Epsilon is for one record replaced by nothing, and holds while server and helper do not
    collude. A ledger that does not add up is refused.

    Parameters
    ----------
    node
        The node's name; or its vault, if it is not where vaults are by default.
    delta
        The δ at which ε is stated.
    """
    from codedfedl.privacy.accounting import ADJACENCY
    from codedfedl.privacy.ledger import Ledger

    vault = Path(node) if Path(node).is_dir() else vault_of(node)
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
