"""Flower's programs as this package uses them: no telemetry, no update check, no installation."""

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.federate.flower.registry import NODE, REGISTRY, Entry, Registry, fingerprint_of
from codedfedl.federate.transport import printable
from codedfedl.io.files import make_folder

__all__ = [
    "APP",
    "TESTED",
    "Superlink",
    "check_engine",
    "check_version",
    "environment",
    "free_port",
    "own_user",
    "program",
]

APP = Path(__file__).parent / "app"
"""The Flower app folder that `flwr run` takes."""

TESTED = ("1.41", "1.42")
"""The releases of Flower whose internals this package is tested with."""

_PATIENCE = 180.0  # seconds for a command of Flower's; on a busy machine it needs a minute to start
_INSTALL = "pip install 'codedfedl[flower]'"


def check_engine() -> None:
    """Refuse to begin without Flower, or with a version that is not tested."""
    try:
        installed = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise InputError(f"federations need Flower: {_INSTALL}") from None
    check_version(installed)


def check_version(installed: str) -> None:
    """Refuse a version of Flower other than the final releases that this package is tested with.

    Nodes answer through Flower's internals, so that no delivered code runs on them: with other
    internals nothing would vouch for that.
    """
    release, _, patch = installed.rpartition(".")
    if release not in TESTED or not re.fullmatch("[0-9]+", patch):
        raise InputError(
            f"flwr {installed} is installed, and only {' and '.join(TESTED)} are tested: "
            f"pip install 'flwr~={TESTED[0]}.0'"
        )


def environment(home: Path) -> dict[str, str]:
    """Return the environment of all Flower programs of a federation."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "NO_COLOR": "1",
        "MALLOC_MMAP_THRESHOLD_": str(2**20),  # large answers leave no holes behind in memory
    }


def program(name: str) -> str:
    """Return the path of a Flower program beside this Python."""
    return str(Path(sys.executable).parent / name)


def own_user(name: str) -> list[str]:
    """Return the beginning of a command for a Flower program that answers this user alone."""
    return [sys.executable, "-m", "codedfedl.federate.flower.own_user", name]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port below the ephemeral range, so that no outgoing connection takes it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind((host, port))
            return port


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
        (home / "config.toml").write_text(f"{text}{secure}\n", "utf-8")

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
        self.registry.add(Entry(name, node, fingerprint, role=role or NODE))
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

    def nodes(self) -> dict[int, str]:
        """Return all nodes that it knows, and whether each is online."""
        found = self._flwr(["supernode", "list"])
        return {int(node["node-id"]): str(node["status"]) for node in found["nodes"]}

    def submit(self, experiment: Path, out: Path, app: Path = APP) -> int:
        """Begin a federation, and return the number of its run."""
        keys = {"experiment": str(experiment), "out": str(out)}
        if self.registry.path.is_file():
            keys["registry"] = str(self.registry.path)
        config = " ".join(f"{key}={_toml(value)}" for key, value in keys.items())
        return int(self._flwr(["run", str(app)], ["--run-config", config])["run-id"])

    def status(self, run: int) -> tuple[str, str]:
        """Return a run's status, such as ``finished:completed``, and what the engine says of it."""
        found = self._flwr(["list"], ["--run-id", str(run)])
        runs = found.get("runs", [])
        if not runs:
            return "unknown", ""
        return printable(runs[0].get("status", "unknown")), printable(runs[0].get("details", ""))

    def _flwr(self, command: Sequence[str], options: Sequence[str] = ()) -> dict[str, Any]:
        """Call `flwr`; it always exits with 0, so its output decides."""
        try:
            done = subprocess.run(
                [program("flwr"), *command, "here", *options, "--format", "json"],
                env=environment(self.home),
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
            answer: dict[str, Any] = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"error-message": done.stderr or done.stdout}
        except subprocess.TimeoutExpired:
            answer = {"error-message": f"no answer in {_PATIENCE:g} s"}
        except FileNotFoundError:
            raise InputError(f"flwr is not installed beside this Python: {_INSTALL}") from None
        if not answer.get("success"):
            why = printable(answer.get("error-message", ""), 300)
            raise InputError(
                f"the SuperLink at {self.address} refuses the request ({why}): see that "
                "it runs, that the port is open, and that the certificates are its own"
            )
        return answer


def _toml(value: object) -> str:
    return json.dumps(str(value))  # a JSON string is a TOML string too
