"""A node's configuration is the same on the command line, in a stock SuperNode and in Python."""

from math import inf
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from codedfedl import InputError
from codedfedl.cli.options import documented
from codedfedl.federate.node.config import NodeConfig

CONFIGS = [
    NodeConfig("ada"),
    NodeConfig("ada", data=Path("my points.csv"), label="kind", least=3, cache=Path("/cache")),
    NodeConfig("ada", loader="mine:load", dataset="mine", accept=("a1", "b2"), works="own,more"),
    NodeConfig("ada", encoder="net.onnx", text="inputs"),
    NodeConfig("ada", helper=Path("masks.pub"), vault=Path("vault"), epsilon_cap=0.0),
    NodeConfig("ada", helper=Path("masks.pub"), epsilon_cap=inf, parity=True),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_plain_values_and_options_give_the_same_configuration(config: NodeConfig) -> None:
    assert NodeConfig.read(config.values, "unnamed") == config
    parsed: list[NodeConfig] = []
    app = typer.Typer()

    @app.command()
    @documented
    def node(*, config: NodeConfig) -> None:
        parsed.append(config)

    done = CliRunner().invoke(app, config.options)
    assert done.exit_code == 0, done.output
    assert parsed == [config]


def test_other_keys_are_the_loaders() -> None:
    config = NodeConfig.read({"loader": "mine:load", "table": "kinds", "seed": 3}, "17")
    assert (config.name, dict(config.settings)) == ("17", {"table": "kinds", "seed": 3})
    assert config.values == {"table": "kinds", "seed": 3, "name": "17", "loader": "mine:load"}


def test_paths_are_whole_for_processes_in_other_folders() -> None:
    config = NodeConfig("ada", data=Path("mine.npz"), encoder="net.onnx").resolved()
    assert config.data == Path.cwd() / "mine.npz"
    assert config.encoder == str(Path.cwd() / "net.onnx")
    assert NodeConfig("ada", encoder="mine:encode").resolved().encoder == "mine:encode"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"least": 0}, "least is 0 .* must be 1 or more"),
        ({"least": 1.5}, "least is 1.5 .* must be 1 or more"),
        ({"epsilon_cap": -1.0}, "epsilon_cap is -1.0 .* must be 0 or more"),
        ({"epsilon_cap": "nan"}, "epsilon_cap is nan .* must be 0 or more"),
    ],
)
def test_limits_that_limit_nothing_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NodeConfig.read(values, "ada")
