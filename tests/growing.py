"""A federation's run directory that grows exchange by exchange, as its server would write it."""

import fcntl
import shutil
from pathlib import Path

from codedfedl.federate.server.session import federate
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from tests.loopback import Script, experiment_of, transport_of

NEWTON = {"name": "coded-newton"}
ROUNDS = 4
SLOW, SLOW_SECONDS = 3, 9.0  # a client that takes longer than the deadline
DEADLINE = 6.0


def finished_run(folder: Path) -> RunDirectory:
    """Play a federation of four in memory; the last client is always late."""
    experiment = experiment_of(4, ROUNDS, NEWTON, deadline=DEADLINE)
    transport = transport_of(experiment, folder / "nodes", Script(delay=_delay))
    directory = RunDirectory(folder / "run")
    with directory.logged() as say:
        federate(transport, experiment, directory, say)
    return directory


def _delay(client: int, _kind: str, facts: dict[str, object]) -> float:
    if "round" not in facts or facts["round"] == -1:
        return 0.2
    return SLOW_SECONDS if client == SLOW else 2.0 + client


class GrowingRun:
    """A copy of a finished run, at first without an exchange; locked, as by a server."""

    def __init__(self, source: RunDirectory, path: Path) -> None:
        self.source, self.directory = source, RunDirectory(path)
        self.paths = Journal(source.path).paths()
        self.exchanges, self.rounds = path / "exchanges", 0
        self.exchanges.mkdir(parents=True)
        begun = ("cells.json", "config.toml", "environment.json", "members.json", "traces.parquet")
        for name in begun:
            shutil.copy(source.path / name, path / name)
        self.lock = (path / ".lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.status = self.directory.status
        self.status.running("probe 2 of 2 done")

    def grow(self) -> bool:
        """Add the next exchange and say so; return whether there was one."""
        at = len(list(self.exchanges.glob("[0-9]*.npz")))
        if at == len(self.paths):
            return False
        partial = self.exchanges / f".partial.{self.paths[at].name}"
        shutil.copy(self.paths[at], partial)
        partial.rename(self.exchanges / self.paths[at].name)
        self.rounds = at  # the first exchange is the set-up
        self.status.running(f"exchange {at} is finished", round_=at, rounds=ROUNDS, metric=0.5)
        return True

    def grow_or_finish(self) -> None:
        """Add the next exchange or, where there is none, the end."""
        if not self.grow():
            self.finish()

    def finish(self) -> None:
        """Write what a run leaves at its end."""
        while self.grow():
            pass
        for path in self.source.path.glob("*.parquet"):
            shutil.copy(path, self.directory.path / path.name)
        shutil.copy(self.source.path / "exchanges" / "head.json", self.exchanges / "head.json")
        for name in ("beginning.json", "gone.json"):
            shutil.copy(self.source.path / name, self.directory.path / name)
        self.status.done()
        self.lock.close()
