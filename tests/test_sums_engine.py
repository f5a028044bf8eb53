"""Noisy sums on the real engine: nodes, server and helper as processes, with TLS and kills."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from codedfedl.cli import app
from codedfedl.core.record import ARRIVED
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import experiment_of
from tests.test_engine import MARK, Running, _failed, federate_local, flowers_of
from tests.test_sums import share_spent, uniform
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every process that a test starts carry the test's folder in its environment."""
    monkeypatch.setenv(MARK, str(tmp_path))


def ledgers(folder: Path) -> list[dict[str, Any]]:
    found = sorted(folder.glob("local/vaults/*/ledger.json"))
    return [json.loads(path.read_text()) for path in found]


def received(folder: Path) -> np.ndarray[Any, Any]:
    """Return all that the server has received of the clients: sums of masked answers."""
    kept = []
    for path in sorted(folder.glob("sums/*.npz")):
        with np.load(path) as stored:
            kept.append(stored["sum/masked"])
    return np.concatenate(kept)


@pytest.mark.long
def test_a_short_private_federation_with_tls(tmp_path: Path) -> None:
    """The bytes are tested at false alarms of 1e-6; what the helper uncovers fails the test."""
    out = tmp_path / "run"
    options = ("--scheme", "private", "--epsilon", "3", "--rounds", "4", "--deadline", "40")
    done = federate_local(out, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["arrived"] for row in found["rounds"]] == [3, 3, 3, 3]
    (told,) = json.loads((out / "privacy.json").read_text())["runs"]
    assert told["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert [one["entries"][0]["sums"] for one in ledgers(out)] == [[0, 1, 2, 3]] * 3
    assert all(one["entries"][0]["closed"] for one in ledgers(out))
    assert uniform(received(out))
    exchanges = [one for one in Journal(out).exchanges() if one.sums]
    assert share_spent(out) == pytest.approx(1.0)
    assert not uniform(exchanges[-1].sums["gradient"])
    assert (out / "local" / "logs" / "helper.log").is_file()
    eventually(lambda: not flowers_of(tmp_path), 10, "processes were left")
    again = CliRunner().invoke(app, ["simulate", "--replay", str(out), "--json"])
    assert json.loads(again.stdout)["difference"] == 0.0


@pytest.mark.long
def test_kills_of_node_helper_and_server_spend_nothing_twice(tmp_path: Path) -> None:
    scheme = {"name": "private", "epsilon": 3.0}
    experiment = experiment_of(3, 6, scheme, deadline=None, probes=1, setup_timeout=60.0)
    running = Running(tmp_path, experiment, tls=True, epsilon_cap=3.0)
    with running.local:
        run = running.submit()
        running.wait_for_round(1, 300)

        running.local.signal_node(2, signal.SIGKILL)
        killed = running.wait_for_round(3, 240)
        assert killed.outcome[2] != ARRIVED
        assert killed.arrived.sum() == 2

        running.local.kill_helper()
        before = len(running.played())
        running.local.start_helper()
        _revived_until(running, before + 1)

        os.kill(running.server(), signal.SIGKILL)
        eventually(lambda: _failed(running.local, run), 60, "the engine did not notice")
        running.submit()
        running.wait_until_done(300)
    exchanges = list(running.journal.exchanges())
    rounds = [one.record.round for one in exchanges if not one.record.is_setup]
    assert rounds == list(range(6))
    assert sum(bool(one.sums) for one in exchanges) == 6
    assert share_spent(running.directory.path) == pytest.approx(1.0)
    first, second, _ = ledgers(tmp_path)
    assert first["entries"][0]["sums"] == second["entries"][0]["sums"] == list(range(6))
    assert uniform(received(running.directory.path))
    assert replay(running.directory).difference == 0.0


def _revived_until(running: Running, count: int) -> None:
    """Start the helper again, as a supervisor would, until so many rounds are played."""

    def played() -> bool:
        running.local.revive()
        return len(running.played()) >= count

    eventually(played, 240, f"round {count} was not played")
