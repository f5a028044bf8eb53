"""A server: a SuperLink on loopback, the gate in front of it, and a worker for its server apps.

All of it belongs to one folder, the server's home: data base, registry, secret, and a file that
tells the operator's commands where the SuperLink is. Nobody but its user can read any of it.
"""

import asyncio
import ipaddress
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.federate.deploy.gate import Gate
from codedfedl.federate.deploy.keys import Keys, make_private, write_secret
from codedfedl.federate.deploy.listener import (
    GateLimits,
    client_context,
    descriptors_for,
    server_context,
)
from codedfedl.federate.deploy.registry import (
    NODE,
    REGISTRY,
    RegisteredKey,
    Registry,
    fingerprint_of,
)
from codedfedl.federate.flower.programs import (
    APP,
    HOST,
    INSTALL,
    RUNG,
    Program,
    alone_in,
    engine,
    environment,
    free_port,
    program,
)
from codedfedl.federate.transport import Say, printable, quietly
from codedfedl.io.files import make_folder, read_json, replacing, write_json

RUN = "run.json"
"""The file that names the latest run, in the home of a server."""

# Seconds for a command of Flower's; on a busy machine it needs a minute to start.
COMMAND_SECONDS = 180.0

# Seconds between two looks for a run that waits for its server app.
LOOK_SECONDS = 0.3

# Seconds for which a command waits for a server that was started just before it.
STARTING_SECONDS = 90.0

# Seconds between two warnings of certificates that expire.
DAY_SECONDS = 86400.0


class Superlink:
    """A running SuperLink, and the commands for it.

    Attributes
    ----------
    registry
        Which name belongs to which of its nodes.
    """

    def __init__(self, address: str, home: Path, authority: Path | None) -> None:
        """Write the connection's settings to `home`; without an authority it is plaintext."""
        self.address, self.home = address, home
        self.registry = Registry(home / REGISTRY)
        make_folder(home)
        secure = (
            "insecure = true" if authority is None else f"root-certificates = {_toml(authority)}"
        )
        text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = {_toml(address)}\n'
        with replacing(home / "config.toml") as partial:  # other commands may read it now
            partial.write_text(f"{text}{secure}\n", "utf-8")

    def register(self, public_key: Path, name: str, role: str | None = None) -> bool:
        """Admit a node by its key, under this name and in this role only.

        Parameters
        ----------
        role
            One of `ROLES`; by default that which the key has already, or a node's.

        Returns
        -------
        bool
            Whether it is new, or has another role now.
        """
        fingerprint = fingerprint_of(public_key)
        entry = self.registry.check_new(name, fingerprint)
        if entry is not None:
            if role in (None, entry.role):
                return False
            self.registry.assign(entry, str(role))
            return True
        try:
            node = int(self._flwr(["supernode", "register", str(public_key)])["node-id"])
        except InputError as error:
            if "already in use" not in str(error):
                raise
            raise InputError(
                f"the SuperLink has the key {public_key} and {self.registry.path} does not: "
                f"make a new one on {name}"
            ) from None
        self.registry.add(RegisteredKey(name, node, fingerprint, role=role or NODE))
        return True

    def revoke(self, name_or_key: str) -> str:
        """End a node's key; return the node's name."""
        entry = self.registry.find(name_or_key)
        self._flwr(["supernode", "unregister", str(entry.node)])
        self.registry.revoke(entry)
        return entry.name

    def stop(self, run: int) -> None:
        """End a run at once; what it finished stays."""
        self._flwr(["stop", str(run)])

    def nodes(self) -> dict[int, str | None]:
        """Return all nodes that it knows, and since when each is connected, if it is."""
        nodes = self._flwr(["supernode", "list"])["nodes"]
        return {
            int(node["node-id"]): node["online-at"].replace(" ", "T").replace("Z", "+00:00")
            if node["status"] == "online"
            else None
            for node in nodes
        }

    def submit(self, experiment: Path, out: Path, app: Path = APP) -> int:
        """Begin a federation, and return the number of its run."""
        keys = {"experiment": str(experiment), "out": str(out)}
        if self.registry.path.is_file():
            keys["registry"] = str(self.registry.path)
        config = " ".join(f"{key}={_toml(value)}" for key, value in keys.items())
        number = int(self._flwr(["run", str(app)], ["--run-config", config])["run-id"])
        write_json(self.home / RUN, {"run": number, "out": str(out)})
        return number

    def status(self, run: int) -> tuple[str, str]:
        """Return a run's status, such as ``finished:completed``, and what the engine says of it."""
        known, *_ = self._flwr(["list"], ["--run-id", str(run)]).get("runs") or [{}]
        return printable(known.get("status", "unknown")), printable(known.get("details", ""))

    def _flwr(self, command: Sequence[str], options: Sequence[str] = ()) -> dict[str, Any]:
        """Call `flwr`; it always exits with 0, so its output decides."""
        try:
            done = subprocess.run(
                [program("flwr"), *command, "here", *options, "--format", "json"],
                env=environment(self.home),
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_SECONDS,
            )
            answer: dict[str, Any] = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"error-message": done.stderr or done.stdout}
        except subprocess.TimeoutExpired:
            answer = {"error-message": f"no answer in {COMMAND_SECONDS:g} s"}
        except FileNotFoundError:
            raise InputError(f"flwr is not installed beside this Python: {INSTALL}") from None
        if not answer.get("success"):
            why = printable(answer.get("error-message", ""), 300)
            raise InputError(
                f"the SuperLink at {self.address} refuses the request ({why}): see that "
                "codedfedl federate serve still runs, and its log"
            )
        return answer


def last_run(home: Path) -> tuple[int, Path] | None:
    """Return number and directory of the latest run on the server in a folder."""
    if not (home / RUN).is_file():
        return None
    last = read_json(home / RUN, "delete it")
    return int(last["run"]), Path(last["out"])


def running(home: Path, say: Say | None = None) -> Superlink:
    """Return the SuperLink of a server that runs in a folder.

    Parameters
    ----------
    say
        If given, a server that is about to run is waited for, and this says so.
    """
    until, is_waiting = time.monotonic() + STARTING_SECONDS, False
    while True:
        try:
            served = json.loads((home / "serve.json").read_text("utf-8"))
            os.kill(int(served["process"]), 0)
            break
        except (OSError, ValueError, KeyError):
            if say is None or time.monotonic() > until:
                raise InputError(
                    f"no server runs in {home}: start it with codedfedl federate serve, or name "
                    "its file with --federation"
                ) from None
        if not is_waiting and say is not None:
            say(f"waiting for the server of {home}, which codedfedl federate serve starts")
        is_waiting = True
        time.sleep(LOOK_SECONDS)
    authority = None if served["authority"] is None else Path(served["authority"])
    return Superlink(served["address"], home, authority)


def _toml(value: object) -> str:
    return json.dumps(str(value))  # a JSON string is a TOML string too


@dataclass(frozen=True)
class ServerSettings:
    """What a server is started with.

    Attributes
    ----------
    home
        The server's folder.
    host, port
        Address and port that nodes connect to.
    keys
        Certificates; without them everything is plaintext, on loopback only.
    database
        The SuperLink's; in `home` by default.
    """

    home: Path
    host: str
    port: int
    keys: Keys | None
    database: Path | None = None

    def check(self) -> None:
        """Refuse what would be unsafe or fail later."""
        if self.keys is not None:
            self.keys.check(HOST, [])
            return
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = self.host == "localhost"
        if not loopback:
            raise InputError(
                f"server.host is {self.host}, and without server.keys only loopback is served: "
                "make keys with codedfedl federate init"
            )

    @property
    def secret(self) -> Path:
        """Path of the secret that authorises taking tasks."""
        return self.home / "secret"

    @property
    def data(self) -> Path:
        """Path of the data base."""
        return self.database or self.home / "superlink.db"

    @property
    def options(self) -> list[str]:
        """What a SuperLink is started with, besides its port."""
        options = ["--database", str(self.data.resolve())]
        options += ["--disable-runtime-dependency-installation", "--isolation", "process"]
        options += ["--superexec-auth-secret-file", str(self.secret)]
        if self.keys is None:
            return [*options, "--insecure"]
        options += ["--ssl-ca-certfile", str(self.keys.authority.resolve())]
        options += ["--ssl-certfile", str(self.keys.server.resolve())]
        options += ["--ssl-keyfile", str(self.keys.server_key.resolve())]
        return [*options, "--enable-supernode-auth"]


def serve(settings: ServerSettings, say: Say) -> int:
    """Serve until a signal comes or the SuperLink ends; return how it ended."""
    settings.check()
    make_private(settings.home)
    if settings.keys is not None:
        Registry(settings.home / REGISTRY).begin()
    taken = f"a server is already running in {settings.home}: end it, or change server.home"
    with alone_in(settings.home, taken):
        for token in settings.home.glob("token-*"):  # of a server that was killed
            token.unlink()
        write_secret(settings.secret, secrets.token_bytes(32).hex().encode())
        port = free_port()
        try:
            with engine("flower-superlink", settings.options, settings.home, port) as link:
                return asyncio.run(_serve(settings, link, port, say))
        finally:
            for path in (settings.home / "serve.json", settings.secret):
                path.unlink(missing_ok=True)


def _limits(say: Say) -> GateLimits:
    """Return the gate's limits, with no more connections than there may be open files."""
    limits = GateLimits()
    connections = descriptors_for(limits.connections)
    if connections < limits.connections:
        say(
            f"warning: the limit on open files allows {connections} connections at a time, not "
            f"{limits.connections}: raise it with ulimit -Hn, or LimitNOFILE= of systemd"
        )
    return replace(limits, connections=connections)


async def _serve(settings: ServerSettings, link: Program, port: int, say: Say) -> int:
    from codedfedl.federate.flower.worker import ServerWorker, TaskClient

    keys, address = settings.keys, f"{HOST}:{port}"
    upstream = None if keys is None else client_context(keys.authority)
    tls = None if keys is None else server_context(keys.server, keys.server_key)
    authority = None if keys is None else keys.authority.resolve()
    disk = settings.data.resolve().parent
    free = lambda: float(shutil.disk_usage(disk).free)  # noqa: E731
    (rung := settings.home / RUNG).unlink(missing_ok=True)
    gate = Gate((HOST, port), upstream, _limits(say), quietly(say), free, rung)
    ended, warned = asyncio.Event(), -DAY_SECONDS
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tasks = TaskClient(address, settings.secret.read_bytes(), authority)
    with closing(ServerWorker(tasks, settings.home, authority)) as apps:
        async with gate.listening(settings.host, settings.port, tls):
            served = {"address": address, "process": os.getpid()}
            served |= {"authority": None if authority is None else str(authority)}
            write_secret(settings.home / "serve.json", json.dumps(served).encode())
            say(f"nodes connect to {settings.host}:{settings.port}")
            while link.ended() is None and not ended.is_set():
                if keys is not None and time.monotonic() - warned > DAY_SECONDS:
                    for sentence in keys.expiring():
                        say(sentence)
                    warned = time.monotonic()
                await asyncio.to_thread(apps.look)
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), LOOK_SECONDS)
    if ended.is_set():
        return 0
    say(f"the SuperLink ended with code {link.ended()}: see its lines above")
    return 1
