"""Secure sums on the real engine: nodes, server and helper as processes, with TLS and kills."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from codedfedl.cli import app
from codedfedl.core.record import ARRIVED
from codedfedl.federate.deploy.local import node_name
from codedfedl.federate.job import HELPER
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.engine import MARK, Running, failed, federate_local, flowers_of
from tests.loopback import experiment_of
from tests.summing import share_spent, uniform
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
    """The server dies when it has told a helper that is dead who arrived: that sum is not lost.

    How many rounds have enough arrivals for a sum is the machine's affair; what they spend is not.
    """
    scheme = {"name": "private", "epsilon": 3.0}
    experiment = experiment_of(3, 6, scheme, deadline=25.0, probes=1, setup_timeout=60.0)
    running = Running(tmp_path, experiment, tls=True, epsilon_cap=3.0)
    path = running.directory.path
    with running.local:
        run = running.submit()
        running.wait_for_round(1, 300)

        running.local.send(node_name(2), signal.SIGKILL)
        eventually(lambda: missed(running, 2), 120, "a dead node seems to answer")

        running.local.send(HELPER, signal.SIGKILL)
        sum_ = eventually(lambda: stuck(path), 120, "no sum was asked for")
        before = sum_.read_bytes()
        os.kill(running.server(), signal.SIGKILL)
        eventually(lambda: failed(running.local, run), 60, "the engine did not notice")
        assert kept_without_answer(path) == sum_

        running.local.start(HELPER)
        running.local.start(node_name(2))
        running.submit()
        _revived_until_done(running)
    exchanges = list(running.journal.exchanges())
    rounds = [one.record.round for one in exchanges if not one.record.is_setup]
    assert rounds == list(range(6))
    given = [one for one in exchanges if one.sums]
    assert [one.spent for one in given] == pytest.approx(adds_up_to(path)[: len(given)])
    assert exchanges[-1].spent == given[-1].spent
    assert len(given) >= 3
    assert sum_.read_bytes() == before
    with np.load(sum_) as stored:
        kept = Exchange.of(dict(stored))
    np.testing.assert_array_equal(given[int(sum_.stem)].record.arrived, kept.record.arrived)
    for ledger in ledgers(tmp_path):
        (entry,) = ledger["entries"]
        assert set(entry["sums"]) <= set(range(6))
        assert entry["spent"] <= adds_up_to(path)[-1] * (1 + 1e-9)
    assert exchanges[-1].record.outcome[2] == ARRIVED
    assert uniform(received(path))
    assert replay(running.directory).difference == 0.0


def missed(running: Running, client: int) -> bool:
    """Whether a client was asked in a round and did not answer in time."""
    return any(not record.arrived[client] for record in running.played())


def stuck(path: Path) -> Path | None:
    """Return the masked sum whose answer does not come."""
    found = kept_without_answer(path)
    time.sleep(3)  # an answer that was on its way is noted by then
    return found if kept_without_answer(path) == found else None


def kept_without_answer(path: Path) -> Path | None:
    """Return the masked sum that was written down for the helper, and is not in the journal yet."""
    given = sum(bool(one.sums) for one in Journal(path).exchanges())
    found = path / "sums" / f"{given:06d}.npz"
    return found if found.is_file() else None


def adds_up_to(path: Path) -> list[float]:
    """Return the mu² that the first, the first two, ... sums spend, from what was announced."""
    (told,) = json.loads((path / "privacy.json").read_text())["runs"]
    each: list[float] = [
        (one["sensitivity"] / one["sigma"]) ** 2
        for one in told["releases"]
        for _ in range(one["count"])
    ]
    return [sum(each[:count]) for count in range(1, len(each) + 1)]


def _large(exchange: Exchange) -> list[Any]:
    """Return what the helper uncovered, if there is enough of it for a test."""
    return [row for row in exchange.sums.values() if row.size > 100]


def _revived_until_done(running: Running) -> None:
    """Start nodes and helper again, as a supervisor would, until the federation ends."""

    def done() -> bool:
        running.local.revive()
        return " done: " in running.directory.log.read_text()

    eventually(done, 400, "the federation did not end")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["coded", "coded-newton"])
def test_secure_sums_without_noise_and_one_kill(scheme: str, tmp_path: Path) -> None:
    """Parity of `coded` is a masked sum too, that of `coded-newton` is each node's own."""
    out = tmp_path / "run"
    options = ("--scheme", scheme, "--secure", "--kill", "1", "--deadline", "20")
    done = federate_local(out, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"][0]["arrived"] == 3
    assert found["rounds"][-1]["arrived"] == 2
    assert "privacy" not in found
    assert not (out / "privacy.json").exists()
    assert (out / "parity").exists() == (scheme == "coded-newton")
    assert uniform(received(out))
    exchanges = list(Journal(out).exchanges())
    assert sum(bool(one.sums) for one in exchanges) == (4 if scheme == "coded" else 3)
    assert not any(uniform(row) for one in exchanges for row in _large(one))
    assert ledgers(out) == []
    again = CliRunner().invoke(app, ["simulate", "--replay", str(out), "--json"])
    assert json.loads(again.stdout)["same"] is True
