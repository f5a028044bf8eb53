"""`codedfedl federate serve`, `node`, and the operator's commands: register, revoke, stop, key."""

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from codedfedl.cli.output import messages
from codedfedl.errors import InputError
from codedfedl.federate.node_config import NodeConfig

if TYPE_CHECKING:
    from codedfedl.federate.flower.superlink import Superlink

__all__ = [
    "SERVER_HOME",
    "Authority",
    "Home",
    "LinkAddress",
    "check_access",
    "key_command",
    "leave_on_signals",
    "link_of",
    "node_command",
    "register_command",
    "revoke_command",
    "say",
    "serve_command",
    "stop_command",
]

SERVER_HOME = Path.home() / ".local" / "share" / "codedfedl" / "server"

Home = Annotated[Path, typer.Option(help="The server's folder, as given to federate serve.")]
LinkAddress = Annotated[
    str | None,
    typer.Option("--superlink", help="A SuperLink of your own, as host:port, instead of --home."),
]
Authority = Annotated[
    Path | None, typer.Option("--ca", help="The authority's ca.crt; by default plaintext.")
]


def link_of(home: Path, superlink: str | None, authority: Path | None) -> "Superlink":
    """Return the SuperLink that a command is for: the server's in a folder, or one by address."""
    from codedfedl.federate.flower.programs import check_engine
    from codedfedl.federate.flower.superlink import Superlink, running

    check_engine()
    if superlink is None:
        return running(home.resolve())
    if authority is not None and not authority.is_file():
        raise InputError(f"--ca {authority} does not exist: give the authority's certificate")
    place = "".join(c if c.isalnum() else "-" for c in superlink)
    own = Path.home() / ".cache" / "codedfedl" / "flower" / place
    return Superlink(superlink, own, None if authority is None else authority.resolve())


def serve_command(
    keys: Annotated[
        Path | None,
        typer.Option(help="The folder with ca.crt, server.pem and server.key."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address that nodes connect to.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = 8000,
    home: Home = SERVER_HOME,
    database: Annotated[
        Path | None, typer.Option(help="The SuperLink's database; by default in --home.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No certificates and no keys; on loopback only.")
    ] = False,
) -> None:
    """Serve nodes: a SuperLink on loopback, and a gate that admits only nodes.

    Only this user on this machine can start runs and register keys. Serves until interrupted.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import Keys
    from codedfedl.federate.flower.superlink import ServerSettings, serve

    if (keys is None) != insecure:
        raise InputError("give --keys with the server's certificates, or --insecure on loopback")
    held = None if keys is None else Keys(keys)
    _log_to_stderr()
    code = serve(ServerSettings(home.resolve(), host, port, held, database), say)
    raise typer.Exit(code)


def node_command(
    superlink: Annotated[str, typer.Option(help="The server's gate, as host:port.")],
    name: Annotated[str, typer.Option(help="The name that the operator registered.")],
    authority: Authority = None,
    key: Annotated[Path | None, typer.Option(help="The node's private key.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The node's points: a file or a folder.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The label column of a table.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of a table with texts.")] = None,
    loader: Annotated[
        str | None, typer.Option(help="Instead of --data: a function, as module:function.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="The node's own encoder: an .onnx file, or module:function."),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="The node's cache folder.")] = None,
    least: Annotated[
        int | None, typer.Option(min=1, help="Never answer for fewer points together.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="A name for the node's data; by default their file or loader."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="Accept another job on the same data, by the digest that the node named when it "
            "refused; may be repeated.",
            metavar="DIGEST",
        ),
    ] = None,
    works: Annotated[str | None, typer.Option(help="Modules with custom kinds of work.")] = None,
    helper: Annotated[
        Path | None,
        typer.Option(help="The helper's masks.pub: answer only with masked sums."),
    ] = None,
    vault: Annotated[
        Path | None, typer.Option(help="With --helper: a permanent folder for the ledger.")
    ] = None,
    epsilon_cap: Annotated[
        float | None,
        typer.Option(
            help="With --helper: the most ε to spend on a data set, over all runs; inf also "
            "allows sums without noise.",
            min=0,
        ),
    ] = None,
    parity: Annotated[
        bool,
        typer.Option(
            "--parity",
            help="With --helper: also send parity of the node's own points, which hides nothing.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A key for the loader; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Take part in federations, with the installed code only.

    Ends when the server refuses its key or its SuperNode ends: let a supervisor restart it.
    """
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.flower.supernode import NodeSettings, run_node

    check_name(name)
    check_access(superlink, authority, key)
    if helper is None and (vault is not None or epsilon_cap is not None or parity):
        raise InputError(
            "--vault, --epsilon-cap and --parity are for secure sums: give --helper too"
        )
    if encoder is not None and encoder.endswith(".onnx"):
        encoder = str(Path(encoder).resolve())
    config = NodeConfig(
        name,
        data=data and data.resolve(),
        label=label,
        text=text,
        loader=loader,
        encoder=encoder,
        cache=cache and cache.resolve(),
        least=least,
        dataset=dataset,
        accept=tuple(accept or ()),
        works=works,
        helper=helper and helper.resolve(),
        vault=vault and vault.resolve(),
        epsilon_cap=epsilon_cap,
        parity=parity,
        settings=dict(_pair(text) for text in settings or []),
    )
    leave_on_signals()
    raise typer.Exit(run_node(NodeSettings(superlink, config, authority, key), say))


def check_access(superlink: str, authority: Path | None, key: Path | None) -> None:
    """Refuse another machine as the server without certificates, and missing files."""
    host = superlink.rpartition(":")[0]
    if (authority is None) != (key is None):
        raise InputError("give both --ca and --key: a key is only safe with the server's authority")
    if authority is None and host not in ("127.0.0.1", "localhost"):
        raise InputError(f"{host} is another machine: give --ca and --key")
    for path in (authority, key):
        if path is not None and not path.is_file():
            raise InputError(f"{path} does not exist: make it with codedfedl federate key")
    if key is not None and key.stat().st_mode & 0o077:
        raise InputError(f"{key} can be read by others: chmod 600 {key}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text!r} has no value: write KEY=VALUE")
    return key.strip(), value


def register_command(
    keys: Annotated[list[Path], typer.Argument(help="The nodes' public keys, such as ada.pub.")],
    name: Annotated[
        str | None, typer.Option(help="The node's name; by default the file's. Only with one key.")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(help="node or helper; by default node, or what the key is registered for."),
    ] = None,
    home: Home = SERVER_HOME,
    superlink: LinkAddress = None,
    authority: Authority = None,
) -> None:
    """Admit nodes by their public keys; each name and role then belongs to its key."""
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.federate.deploy.registry import ROLES

    if name is not None and len(keys) > 1:
        raise InputError(
            f"--name {name} is for one key, not for {len(keys)}: register them one at a time"
        )
    for key in keys:
        check_name(name or key.stem)
        if not key.is_file():
            raise InputError(f"{key} does not exist: make it with codedfedl federate key")
    if role is not None and role not in ROLES:
        raise InputError(f"--role is {role!r}: must be {' or '.join(ROLES)}")
    link = link_of(home, superlink, authority)
    for key in keys:
        called = name or key.stem
        changed = link.register(key, called, role)
        done = f"registered {called}" + ("" if role is None else f" as a {role}")
        messages.print(done if changed else f"{called} is already registered")


def revoke_command(
    who: Annotated[str, typer.Argument(help="A node's name, or the file of its public key.")],
    home: Home = SERVER_HOME,
    superlink: LinkAddress = None,
    authority: Authority = None,
) -> None:
    """Revoke a node's key: it is refused, and cannot be registered again."""
    from codedfedl.federate.deploy.registry import fingerprint_of

    found = fingerprint_of(Path(who)) if Path(who).is_file() else who
    messages.print(f"revoked {link_of(home, superlink, authority).revoke(found)}")


def stop_command(
    run: Annotated[Path | None, typer.Argument(help="The run directory.")] = None,
    number: Annotated[
        int | None,
        typer.Option("--run", help="Instead: the number of the run, which ends at once."),
    ] = None,
    home: Home = SERVER_HOME,
    superlink: LinkAddress = None,
    authority: Authority = None,
) -> None:
    """End a run after its current round, or at once by its number.

    Finished rounds stay, and the nodes keep their caches: `federate run` with the same --out
    continues it.
    """
    if (run is None) == (number is None):
        raise InputError("give a run directory, or --run with a number")
    if run is not None:
        from codedfedl.runs.directory import RunDirectory

        RunDirectory(run).stop()
        messages.print(f"{run} ends after its current round; see {run / 'server.log'}")
    else:
        assert number is not None
        link_of(home, superlink, authority).stop(number)
        messages.print(f"run {number} is stopped")


def key_command(
    name: Annotated[str, typer.Argument(help="The node's name.")],
    folder: Annotated[Path, typer.Option(help="Folder for the key pair.")] = Path(),
) -> None:
    """Make a node's key pair, on the node; only the .pub goes to the operator."""
    from codedfedl.federate.flower.programs import check_engine

    check_engine()
    from codedfedl.federate.deploy.keys import make_node_key

    private, public = make_node_key(folder, name)
    messages.print(f"{private} stays here; give {public} to the operator", soft_wrap=True)


def say(sentence: str) -> None:
    """Print a message for people."""
    messages.print(sentence, soft_wrap=True)


def _log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every poll


def leave_on_signals() -> None:
    """End on SIGTERM and SIGHUP as on an exception, so that everything is ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


def _leave(number: int, _frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
