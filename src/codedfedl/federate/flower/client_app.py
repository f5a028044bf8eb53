"""The Flower `ClientApp`: a node from its configuration.

The engine's own isolation starts a process per message; `worker.py` answers in a long-lived one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from codedfedl.data.shards import Shard, load_shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.flower.wire import pack, question_of, unpack
from codedfedl.federate.node import QUESTIONS, Node
from codedfedl.federate.transport import Answerer
from codedfedl.learning.codes import LEAST_MIXING

if TYPE_CHECKING:
    from codedfedl.federate.vault import Vault

__all__ = ["answer", "app", "node_from", "node_of", "respond"]

app = ClientApp()


def node_of(context: Context) -> Node:
    """Return the node that a SuperNode's configuration describes."""
    return node_from(context.node_config, str(context.node_id))


def node_from(config: Mapping[str, Any], number: str) -> Node:
    """Return the node that a configuration describes; without a name it has a number.

    Its keys: `name`; `data`, a file or folder, with `label` and `text` for a table; or `loader`, a
    function as ``module:function``; `encoder`, an ONNX file or ``module:function``; `cache`, a
    folder of the node's own; `least`, the fewest points that it answers for together; `dataset`, a
    name for its data, by default their file or loader; `accept`, digests of further jobs on them
    that its owner accepts, and `works`, modules whose own kinds of work it does, both separated by
    commas;
    `helper`, the file with the helper's public key, `vault`, a folder that outlives the cache,
    `epsilon_cap`, what it spends of a data set at most, and `parity`, whether it sends parity.
    """
    name = str(config.get("name", number))

    def load() -> Shard:
        if "loader" in config:
            return load_shard(str(config["loader"]), dict(config))
        if "data" in config:
            label, text = (_text(config, key) for key in ("label", "text"))
            return read_shard(str(config["data"]), label, text)
        raise InputError(
            f"{name} has no data: start it with --data …/my.npz, or --loader module:function"
        )

    accepted = str(config.get("accept", "")).split(",")
    least = config.get("least", LEAST_MIXING)
    if not isinstance(least, int) or least < 1:
        raise InputError(f"least is {least!r} in the node configuration: must be 1 or more")
    default = Path.home() / ".cache" / "codedfedl" / number
    works = [module.strip() for module in str(config.get("works", "")).split(",") if module.strip()]
    cache = Path(str(config.get("cache", default)))
    return Node(
        name,
        load,
        cache,
        data=_dataset_of(config) or name,
        least=least,
        accepted=[digest.strip() for digest in accepted],
        works=works,
        encoder=_text(config, "encoder"),
        vault=_vault_of(config, name),
    )


def _dataset_of(config: Mapping[str, Any]) -> str:
    """Return the name of a node's data: its own, or that of their file or loader."""
    if "dataset" in config or "data" not in config:
        return str(config.get("dataset") or config.get("loader") or "")
    return Path(str(config["data"])).name


def _text(config: Mapping[str, Any], key: str) -> str | None:
    return str(config[key]) if key in config else None


def _vault_of(config: Mapping[str, Any], name: str) -> "Vault | None":
    """Return the node's vault, if it has pinned a helper."""
    if "helper" not in config:
        return None
    from codedfedl.federate.vault import EPSILON_CAP, Vault
    from codedfedl.privacy.keys import read_public

    default = Path.home() / ".local" / "share" / "codedfedl" / "vaults" / name
    folder = Path(str(config.get("vault", default)))
    cap = float(config.get("epsilon_cap", EPSILON_CAP))
    parity = bool(config.get("parity", False))
    pinned = read_public(Path(str(config["helper"])))
    return Vault(folder, pinned, epsilon_cap=cap, parity=parity)


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
