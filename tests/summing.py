"""A federation of secure sums in memory: nodes with vaults, and a helper among them."""

import json
from collections import defaultdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from typer.testing import CliRunner

from codedfedl.cli import app
from codedfedl.data import load_dataset
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import node_name, write_shards
from codedfedl.federate.secure.helper import HelperNode
from codedfedl.federate.secure.vault import Vault
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered, Arrays
from codedfedl.privacy.masks import own_key, public_digits
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal
from tests.loopback import Loopback, Script, experiment_of

HELPER = 999


SMALL = 1e-6  # false alarms of each test on random numbers


class Summing(Loopback):
    """Nodes with vaults, and a helper among them; all are made anew for every question."""

    cap = 10.0

    def __init__(self, folder: Path, shards: list[Path], script: Script | None = None) -> None:
        super().__init__(folder, shards, script)
        self.seen: list[Arrays] = []  # what clients sent for sums
        self.pinned = public_digits(own_key(self.home / "masks.key"))
        self.responds[HELPER] = self._help
        self.online.add(HELPER)

    @property
    def home(self) -> Path:
        return self.folder / "helper"

    def vault(self, client: int) -> Vault:
        return Vault(self.vault_folder(client), self.pinned, epsilon_cap=self.cap)

    def vault_folder(self, client: int) -> Path:
        return self.folder / "vaults" / node_name(client)

    def _help(self, kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
        answer = HelperNode("helper", self.home).answer(kind, facts, arrays)
        return self.script.change(-1, kind, answer)

    def _respond(self, client: int) -> Any:
        respond = super()._respond(client)

        def watched(kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
            answer: Answered = respond(kind, facts, arrays)
            if kind == "work" and "sum" in facts:
                self.seen.append(answer[1])
            return answer

        return watched


def private(
    clients: int = 4,
    rounds: int = 4,
    *,
    epsilon: float = 8.0,
    noise: str = "helper",
    **more: Any,
) -> Experiment:
    scheme = {"name": "private", "epsilon": epsilon, "noise": noise}
    return experiment_of(clients, rounds, scheme, ready_timeout=60.0, **more)


def summing(experiment: Experiment, tmp_path: Path, script: Script | None = None) -> Summing:
    folder = tmp_path / "nodes"
    return Summing(folder, write_shards(experiment, load_dataset("digits"), folder), script)


def run(grid: Summing, experiment: Experiment, tmp_path: Path) -> tuple[list[Exchange], list[str]]:
    said: list[str] = []
    federate(grid, experiment, RunDirectory(tmp_path / "run"), said.append)
    return list(Journal(tmp_path / "run").exchanges()), said


def run_killed(grid: Summing, experiment: Experiment, tmp_path: Path, asks: int) -> None:
    """Kill the server at a question, and run it again."""
    grid.crash_after = asks
    try:
        run(grid, experiment, tmp_path)
    except KeyboardInterrupt:
        grid.crash_after = None
        run(grid, experiment, tmp_path)


def run_until_sum(number: int, grid: Summing, experiment: Experiment, tmp_path: Path) -> list[Any]:
    """Kill the server when the helper has answered for a sum; return all that it answers."""
    answers: list[Any] = []

    def change(client: int, kind: str, answer: Answered) -> Answered:
        if kind == "sum":
            answers.append(answer[1]["sum"])
            if len(answers) == number:
                raise KeyboardInterrupt
        return answer

    grid.script = Script(change=change)
    with pytest.raises(KeyboardInterrupt):
        run(grid, experiment, tmp_path)
    return answers


def share_spent(run: Path) -> float:
    """Return what the journal says was spent, as a share of what was announced beforehand."""
    (told,) = json.loads((run / "privacy.json").read_text())["runs"]
    *_, last = Journal(run).exchanges()
    return float(last.spent / told["mu"] ** 2)


def ledger_of(grid: Summing, client: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((grid.vault_folder(client) / "ledger.json").read_text())
    return document


def answers_sent(grid: Summing) -> int:
    """How many answers with numbers in them left the clients."""
    return sum(bool(arrays) for arrays in grid.seen)


def uniform(view: np.ndarray[Any, Any]) -> bool:
    """Whether bytes pass a chi-square test for being uniform, at false alarms of `SMALL`."""
    counts = np.bincount(np.ascontiguousarray(view).view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return bool(chi2.sf(((counts - expected) ** 2 / expected).sum(), 255) > SMALL)


def refusal(*command: str) -> str:
    """Return the error that a command ends with, which becomes one line and exit code 2."""
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, InputError), error
    return str(error)


def secure(scheme: dict[str, Any], clients: int = 4, rounds: int = 3, **more: Any) -> Experiment:
    return experiment_of(clients, rounds, scheme | {"secure": True}, ready_timeout=60.0, **more)


class PlainSumming(Summing):
    """Nodes that allow any ε; what each sent for a sum is kept, by the sum's number."""

    cap, parity = inf, False

    def vault(self, client: int) -> Vault:
        folder = self.vault_folder(client)
        return Vault(folder, self.pinned, epsilon_cap=self.cap, parity=self.parity)

    def __init__(self, folder: Path, shards: list[Path], script: Script | None = None) -> None:
        super().__init__(folder, shards, script)
        self.sent: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)

    def _respond(self, client: int) -> Any:
        respond = super()._respond(client)

        def watched(kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
            answer: Answered = respond(kind, facts, arrays)
            if kind == "work" and "sum" in facts:
                place = (client, facts["sum"]["number"], facts["sum"]["attempt"])
                self.sent[place] += [row.tobytes() for row in answer[1].values()]
            return answer

        return watched
