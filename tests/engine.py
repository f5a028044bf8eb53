"""Federations on the real engine, and what is left of their processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from codedfedl.core.record import Record
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import LocalFederation, local_keys, write_shards
from codedfedl.federate.flower.programs import APP
from codedfedl.federate.node.config import NodeConfig
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from tests.waiting import eventually

BIN = Path(sys.executable).parent


MARK = "CODEDFEDL_TEST"


def flowers_of(folder: Path) -> dict[int, str]:
    """Return the running processes of a test's federation, and their commands."""
    mine = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (place / "environ").read_bytes().split(b"\0")
            if f"{MARK}={folder}".encode() in variables and "guard.py" not in command:
                mine[int(place.name)] = command
        except OSError:
            continue
    return mine


class Running:
    """A federation on this machine, under a test's control."""

    def __init__(
        self,
        tmp_path: Path,
        experiment: Experiment,
        *,
        tls: bool = False,
        app: Path = APP,
        kind: type[LocalFederation] = LocalFederation,
        epsilon_cap: float | None = None,
    ) -> None:
        self.folder = tmp_path
        self.directory = RunDirectory(tmp_path / "run")
        self.directory.open(experiment, resume=False)
        self.journal = Journal(self.directory.path)
        folder = tmp_path / "local"
        clients = experiment.federation.clients if experiment.federation else 0
        shards = write_shards(experiment, load_dataset("digits"), folder / "data")
        helper = epsilon_cap is not None
        keys = local_keys(folder / "keys", clients, helper=helper) if tls else None
        self.local = kind(
            folder,
            shards,
            keys=keys,
            app=app,
            node=NodeConfig("node", epsilon_cap=epsilon_cap),
        )

    def submit(self) -> int:
        return self.local.submit(self.directory.path / "config.toml", self.directory.path)

    def played(self) -> list[Record]:
        return [record for record in self.journal.records() if not record.is_setup]

    def wait_for_round(self, count: int, seconds: float) -> Record:
        eventually(lambda: len(self.played()) >= count, seconds, f"round {count} was not played")
        return self.played()[count - 1]

    def wait_until_done(self, seconds: float) -> None:
        def done() -> bool:
            return self.directory.log.is_file() and " done: " in self.directory.log.read_text()

        eventually(done, seconds, "the federation did not end")

    def server(self) -> int:
        """Return the process in which the server app runs."""
        found = flowers_of(self.folder).items()
        return next(pid for pid, command in found if "flwr-serverapp" in command)


def federate_local(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "codedfedl"), "federate", "local", "--clients", "3", "--rounds", "3"]
    command += ["--deadline", "12", "--tls", "--json", "--set", "federation.probes=1"]
    command += ["--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def serving(folder: Path, address: str = "127.0.0.1:1") -> Path:
    """Write what a server that runs in a folder leaves there, though there is none at its address.

    Returns
    -------
    Path
        The server's home.
    """
    home = folder / "home"
    home.mkdir()
    (folder / "federation.toml").write_text('server.home = "home"\n', "utf-8")
    facts = {"address": address, "process": os.getpid(), "authority": None}
    (home / "serve.json").write_text(json.dumps(facts), "utf-8")
    return home


def failed(local: LocalFederation, run: int) -> bool:
    try:
        return local.finished(run)
    except InputError:
        return True
