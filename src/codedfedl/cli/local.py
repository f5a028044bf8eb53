"""`codedfedl federate local`: a whole federation on this machine."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codedfedl.cli.options import Data, Json, Resume, Serve, grouped, known_schemes
from codedfedl.cli.output import blaming
from codedfedl.errors import InputError
from codedfedl.federate.node_config import NodeConfig

if TYPE_CHECKING:
    from codedfedl.core.protocol import Scheme
    from codedfedl.federate.flower.keys import Keys

__all__ = ["SecurityOptions", "TrainingOptions", "local_command"]


@dataclass(frozen=True)
class TrainingOptions:
    """What the nodes train, and for how long."""

    clients: Annotated[int, typer.Option(min=1, help="Nodes.")] = 3
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5
    deadline: Annotated[
        float | None,
        typer.Option(help="Seconds per round; by default planned from measurements."),
    ] = None
    scheme: Annotated[
        str, typer.Option(help="A scheme, or module:Class.", autocompletion=known_schemes)
    ] = "coded"
    redundancy: Annotated[
        float | None, typer.Option(help="Parity rows as a fraction of all points, for coded.")
    ] = None
    epsilon: Annotated[
        float | None, typer.Option(help="The privacy budget of the run, for private.")
    ] = None
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Let the server see only sums of answers, without noise."),
    ] = False

    @property
    def changes(self) -> dict[str, Any]:
        """What these options change in an experiment, except for the scheme."""
        given = {"federation.rounds": self.rounds, "federation.clients": self.clients}
        deadline = {} if self.deadline is None else {"federation.deadline": self.deadline}
        return given | deadline

    @property
    def scheme_table(self) -> dict[str, Any]:
        """The scheme with its settings, once both are known to be right."""
        from codedfedl.schemes import make_scheme

        given = {"redundancy": self.redundancy, "epsilon": self.epsilon}
        settings = {name: value for name, value in given.items() if value is not None}
        with blaming("--scheme"):
            make_scheme(self.scheme, {})
        for name, value in settings.items():
            with blaming(f"--{name}"):
                make_scheme(self.scheme, {name: value})
        return {"name": self.scheme, **settings, **({"secure": True} if self.secure else {})}

    def node(self, scheme: "Scheme", encoder: str | None, *, text: bool) -> NodeConfig:
        """Return what all nodes are configured with, so that they allow what the scheme needs.

        Sums without noise have no ε: asking for them here allows any.
        """
        from codedfedl.core.disclosure import Disclosure, needs_helper, only_private
        from codedfedl.federate.vault import EPSILON_CAP

        module, colon, _ = self.scheme.partition(":")
        config = NodeConfig(
            "node",
            text="inputs" if text else None,
            encoder=encoder,
            works=module if colon else None,
        )
        if not needs_helper(scheme.info.disclosure):
            return config
        private = only_private(scheme.info.disclosure)
        cap = max(EPSILON_CAP, self.epsilon or 0.0) if private else inf
        parity = {Disclosure.MIXED, Disclosure.SUMS} <= scheme.info.disclosure
        return replace(config, epsilon_cap=cap, parity=parity)


@dataclass(frozen=True)
class SecurityOptions:
    """Keys that the nodes must hold, and how many nodes to kill."""

    tls: Annotated[bool, typer.Option("--tls", help="Use certificates, and a key per node.")] = (
        False
    )
    keys: Annotated[
        Path | None,
        typer.Option(help="Use the certificates and keys in this folder; implies --tls."),
    ] = None
    kill: Annotated[
        int, typer.Option(min=0, help="Kill this many nodes, one after each round.")
    ] = 0

    def check(self, training: TrainingOptions) -> None:
        """Refuse to kill more nodes than the nodes and rounds allow."""
        if self.kill >= training.clients:
            raise InputError(
                f"--kill {self.kill} would leave none of {training.clients} nodes: kill fewer"
            )
        if self.kill >= max(training.rounds, 2):
            raise InputError(
                f"--kill {self.kill} needs more than {training.rounds} rounds: one dies after each"
            )

    def check_keys(self, names: list[str]) -> None:
        """Refuse a folder of keys that lacks one."""
        from codedfedl.federate.flower.keys import Keys

        if self.keys is not None:
            Keys(self.keys).check("127.0.0.1", names)

    def held(self, folder: Path, clients: int, *, helper: bool) -> "Keys | None":
        """Return the keys of --keys, or with --tls new ones in a folder."""
        from codedfedl.federate.flower.keys import Keys
        from codedfedl.federate.flower.local import local_keys

        if self.keys is not None:
            return Keys(self.keys)
        return local_keys(folder, clients, helper=helper) if self.tls else None


@grouped
def local_command(
    training: TrainingOptions,
    security: SecurityOptions,
    *,
    dataset: Annotated[str, typer.Option(help="A data set's name or file.")] = "digits",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key, such as data.batches=2.", metavar="KEY=VALUE"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the SuperLink; by default a free one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/federation"),
    data: Data = None,
    resume: Resume = False,
    serve: Serve = None,
    as_json: Json = False,
) -> None:
    """Run a whole federation on this machine: a SuperLink, SuperNodes, and sockets on loopback.

    Every node has its own data file, cache and key. All processes are ended, whatever happens. The
    run directory is like that of a simulation, with logs in local/logs. Every round is shown as it
    happens; with --serve, a page in the browser shows it too, and becomes the report.

    Examples: `codedfedl federate local --clients 4 --rounds 5 --tls --kill 1 --serve 8080`,
    `codedfedl federate local --scheme coded-newton --rounds 3`,
    `codedfedl federate local --scheme private --epsilon 3 --rounds 8 --tls`,
    `codedfedl federate local --scheme uncoded --secure --tls`.
    """
    from codedfedl.cli.federating import federate_here

    federate_here(training, security, dataset, overrides, port, out, data, resume, serve, as_json)
