"""A federation's run directory that grows exchange by exchange, as its server would write it."""

import fcntl
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from codedfedl.cli import following
from codedfedl.federate.server.session import federate
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.runs.watching import Sight, look
from tests.loopback import Script, experiment_of, transport_of

SAMPLE = re.compile(r'(codedfedl_\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\})? ([-+.\deE]+)')
NEWTON = {"name": "coded-newton"}
SETUPS, ROUNDS = 2, 4  # exchanges: label counts and parity, then rounds
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
        begun = ("cells.json", "config.toml", "environment.json", "fleet.csv", "members.json")
        for name in (*begun, "traces.parquet"):
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
        self.rounds = max(0, at + 1 - SETUPS)
        sentence = f"exchange {at} is finished"
        self.status.running(sentence, round_=self.rounds, rounds=ROUNDS, metric=0.5)
        return True

    def set_up(self) -> None:
        """Add the exchanges before the first round."""
        for _ in range(SETUPS):
            self.grow()

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


def after_every_look(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Let something happen each time that a command has looked at its run."""

    def look_and_do(directory: RunDirectory) -> Sight:
        sight = look(directory)
        do()
        return sight

    monkeypatch.setattr(following, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(following, "look", look_and_do)


def samples(text: str) -> dict[tuple[str, str], float]:
    """Read Prometheus' text format strictly: help, type, then samples of that family alone."""
    assert text.endswith("\n")
    found, family = {}, ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            kind = next(lines)
            assert re.fullmatch(rf"# TYPE {family} (gauge|counter)", kind)
            assert kind.endswith("counter") == family.endswith("_total")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert name == family
        assert (name, labels or "") not in found
        found[name, labels or ""] = float(value)
    return found
