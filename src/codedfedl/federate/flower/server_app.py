"""The Flower `ServerApp`: a federation from its run configuration."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from codedfedl.errors import InputError
from codedfedl.federate.flower.programs import check_engine
from codedfedl.federate.flower.registry import Registry
from codedfedl.federate.flower.roles import BoundTransport
from codedfedl.federate.flower.transport import FlowerTransport
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Transport
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import read_experiment
from codedfedl.runs.overrides import parse_overrides

__all__ = ["app", "federate_on"]

app = ServerApp()


@app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the federation of the run configuration."""
    check_engine()
    federate_on(FlowerTransport(grid), context)


def federate_on(transport: Transport, context: Context) -> None:
    """Run the federation of the run configuration on a transport.

    Its keys: `experiment`, the path of a TOML file with a [federation] table; `out`, the run
    directory; `set`, overrides such as "federation.deadline=20 training.step=3"; `registry`, the
    file that says which name and role belong to which node.
    """
    keys = context.run_config
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
