"""Federations of Flower's own nodes, which load the client of whatever app a run delivers."""

import json
from math import inf

from codedfedl.federate.deploy.local import SUPERLINK, LocalFederation
from codedfedl.federate.flower.programs import HOST, free_port, own_user
from codedfedl.federate.node.config import Access, NodeConfig

__all__ = ["StockFederation", "as_flower_takes_it"]


class StockFederation(LocalFederation):
    """A local federation whose nodes are those of the engine."""

    def command(self, name: str) -> list[str]:
        """Return how a program is started: nodes look for work five times a second."""
        if name == SUPERLINK:
            return super().command(name)
        config = self.node_config(name)
        quick = ["env", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2"]
        program = [*own_user("flower-supernode"), "--host", HOST, "--port", str(free_port())]
        stated = ["--node-config", as_flower_takes_it(config)]
        return [*quick, *program, *_options(self.access(name)), *stated]


def _options(access: Access) -> list[str]:
    """Return how a SuperNode reaches the server; plaintext without keys."""
    if access.ca is None or access.key is None:
        return ["--superlink", access.superlink, "--insecure"]
    options = ["--superlink", access.superlink, "--root-certificates", str(access.ca.resolve())]
    return [*options, "--auth-supernode-private-key", str(access.key.resolve())]


def as_flower_takes_it(config: NodeConfig) -> str:
    """Return a node's configuration as it stands on the command line of a SuperNode."""
    texts = {
        key: "inf" if value == inf else json.dumps(value)  # as TOML has it
        for key, value in config.values.items()
    }
    return " ".join(f"{key}={text}" for key, text in texts.items())
