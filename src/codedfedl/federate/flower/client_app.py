"""The Flower `ClientApp`: a node from its configuration.

The engine's own isolation starts a process per message; `worker.py` answers in a long-lived one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from codedfedl.data.shards import Shard, load_shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.flower.wire import pack, question_of, unpack
from codedfedl.federate.node.config import NodeConfig
from codedfedl.federate.node.node import QUESTIONS, Node
from codedfedl.federate.transport import Answerer
from codedfedl.learning.codes import LEAST_MIXING

if TYPE_CHECKING:
    from codedfedl.federate.secure.vault import Vault

__all__ = ["answer", "app", "node_from", "node_of", "respond"]

app = ClientApp()


def node_of(context: Context) -> Node:
    """Return the node that a SuperNode's configuration describes."""
    return node_from(NodeConfig.read(context.node_config, str(context.node_id)))


def node_from(config: NodeConfig) -> Node:
    """Return the node that a configuration describes."""

    def load() -> Shard:
        if config.loader is not None:
            return load_shard(config.loader, config.values)
        if config.data is not None:
            return read_shard(str(config.data), config.label, config.text)
        raise InputError(
            f"{config.name} has no data: start it with --data …/my.npz, or --loader module:function"
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
    )


def _vault_of(config: NodeConfig) -> "Vault | None":
    """Return the node's vault, if it has pinned a helper."""
    if config.helper is None:
        return None
    from codedfedl.federate.secure.vault import EPSILON_CAP, Vault
    from codedfedl.privacy.keys import read_public

    default = Path.home() / ".local" / "share" / "codedfedl" / "vaults" / config.name
    cap = EPSILON_CAP if config.epsilon_cap is None else config.epsilon_cap
    pinned = read_public(config.helper)
    return Vault(config.vault or default, pinned, epsilon_cap=cap, parity=config.parity)


def answer(message: Message, context: Context) -> Message:
    """Answer any question, as the node of this process."""
    return respond(message, lambda: node_of(context))


def respond(message: Message, node: Callable[[], Answerer]) -> Message:
    """Let a node answer; errors of its own set-up go into the answer."""
    try:
        facts, arrays = node().answer(question_of(message), *unpack(message.content))
    except InputError as error:
        facts, arrays = {"problem": str(error)}, {}
    return Message(pack(facts, arrays), reply_to=message)


for _question in QUESTIONS:
    app.query(_question)(answer)
