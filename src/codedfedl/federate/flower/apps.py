"""The two Flower apps: a node from its configuration, and a federation from that of its run.

The engine would start a process for each message; `connection.py` answers in a long-lived one.
A node's process never loads what its server needs.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from codedfedl.data.shards import Shard, load_shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.deploy.registry import BoundTransport, Registry
from codedfedl.federate.flower.programs import RUNG, check_engine
from codedfedl.federate.flower.wire import respond
from codedfedl.federate.node.config import NodeConfig, vault_of
from codedfedl.federate.node.node import QUESTIONS, Node
from codedfedl.federate.transport import Transport
from codedfedl.learning.codes import LEAST_MIXING

if TYPE_CHECKING:
    from codedfedl.federate.secure.vault import Vault

client = ClientApp()
server = ServerApp()


def node_from(config: NodeConfig) -> Node:
    """Return the node that a configuration describes."""

    def load() -> Shard:
        if config.loader is not None:
            return load_shard(config.loader, config.values)
        if config.data is not None:
            return read_shard(config.data, config.label, config.text, config.preparation)
        raise InputError(
            f"{config.name} has no data: name it in node.toml, or start it with --data or --loader"
        )

    works = [module.strip() for module in (config.works or "").split(",") if module.strip()]
    file = None if config.data is None else config.data.name
    return Node(
        config.name,
        load,
        config.cache or Path.home() / ".cache" / "codedfedl" / config.name,
        data=config.dataset or file or config.loader or config.name,
        least=config.least or LEAST_MIXING,
        accepted=config.accept,
        works=works,
        encoder=config.encoder,
        vault=_vault_of(config),
        networks=config.networks,
    )


def _vault_of(config: NodeConfig) -> "Vault | None":
    """Return the node's vault, if it has pinned a helper."""
    if config.helper is None:
        return None
    from codedfedl.federate.secure.vault import EPSILON_CAP, Vault
    from codedfedl.privacy.masks import read_public

    cap = EPSILON_CAP if config.epsilon_cap is None else config.epsilon_cap
    pinned = read_public(config.helper)
    return Vault(
        config.vault or vault_of(config.name), pinned, epsilon_cap=cap, parity=config.parity
    )


def answer(message: Message, context: Context) -> Message:
    """Answer any question, as the node that a stock SuperNode's configuration describes."""
    values, name = context.node_config, str(context.node_id)
    return respond(message, lambda: node_from(NodeConfig.read(values, name)))


for _question in QUESTIONS:
    client.query(_question)(answer)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the federation of the run configuration."""
    from codedfedl.federate.flower.messaging import FlowerTransport

    check_engine()
    bell = Path(os.environ.get("FLWR_HOME", ""), RUNG)
    try:
        federate_on(FlowerTransport(grid, ring=lambda: _lengthen(bell)), context.run_config)
    finally:
        bell.unlink(missing_ok=True)


def _lengthen(file: Path) -> None:
    with suppress(OSError), file.open("ab") as text:
        text.write(b".")


def federate_on(transport: Transport, keys: Mapping[str, Any]) -> None:
    """Run the federation of the run configuration on a transport.

    Its keys: `experiment`, the path of a TOML file with a [federation] table; `out`, the run
    directory; `set`, overrides such as "federation.deadline=20 training.step=3"; `registry`, the
    file that says which name and role belong to which node.
    """
    from codedfedl.federate.server.session import federate
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.runs.documents import parse_overrides, read_experiment

    if not keys.get("experiment") or not keys.get("out"):
        raise InputError(
            "the run configuration needs experiment and out: add --run-config "
            '\'experiment="…/my.toml" out="…/run"\''
        )
    directory = RunDirectory(str(keys["out"]))
    with directory.logged() as say:
        changes = parse_overrides(str(keys.get("set", "")).split(), "set")
        options = {key: f"set {key}" for key in changes}
        # Whoever started this process has agreed to what the experiment imports.
        experiment = read_experiment(str(keys["experiment"]), changes, options, trust=True)
        registry = str(keys.get("registry", ""))
        if registry:
            transport = BoundTransport(transport, Registry(Path(registry)))
        federate(transport, experiment, directory, say)
