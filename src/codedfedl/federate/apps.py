"""The Flower apps: a `ServerApp` and a `ClientApp` around what knows nothing of Flower.

`flwr run` takes the folder that `codedfedl federate app` prints; it holds no code, only the names
of these two.
"""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from codedfedl.data.shards import Shard, load_shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.collect import Collector
from codedfedl.federate.node import QUESTIONS, Node
from codedfedl.federate.server import federate
from codedfedl.federate.wire import pack, question_of, unpack
from codedfedl.runs.config import read_experiment
from codedfedl.runs.directory import RunDirectory

__all__ = ["answer", "client_app", "node_of", "server_app"]

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the federation of the run configuration.

    Its keys: `experiment`, the path of a TOML file with a [federation] table; `out`, the run
    directory; `set`, overrides such as "federation.deadline=20 training.step=3".
    """
    keys = context.run_config
    if not keys.get("experiment") or not keys.get("out"):
        raise InputError(
            "the run configuration needs experiment and out: add --run-config "
            '\'experiment="…/my.toml" out="…/run"\''
        )
    directory = RunDirectory(str(keys["out"]))
    with directory.logged() as say:
        experiment = read_experiment(str(keys["experiment"]), str(keys.get("set", "")).split())
        federate(Collector(grid), experiment, directory, say)


def node_of(context: Context) -> Node:
    """Return the node that a SuperNode's configuration describes.

    Its keys: `name`; `data`, a file or folder, with `label` for a table; or `loader`, a function
    as ``module:function``; `cache`, a folder of the node's own.
    """
    config = dict(context.node_config)
    name = str(config.get("name", context.node_id))

    def load() -> Shard:
        if "loader" in config:
            return load_shard(str(config["loader"]), config)
        if "data" in config:
            label = config.get("label")
            return read_shard(str(config["data"]), None if label is None else str(label))
        raise InputError(
            f"{name} has no data: start it with --node-config 'data=\"…/my.npz\"', or a loader"
        )

    default = Path.home() / ".cache" / "codedfedl" / str(context.node_id)
    return Node(name, load, Path(str(config.get("cache", default))))


def answer(message: Message, context: Context) -> Message:
    """Answer any question; what is wrong with the node's own set-up goes into the answer."""
    try:
        facts, arrays = node_of(context).answer(question_of(message), *unpack(message.content))
    except InputError as error:
        facts, arrays = {"problem": str(error)}, {}
    return Message(pack(facts, arrays), reply_to=message)


for _question in QUESTIONS:
    client_app.query(_question)(answer)
