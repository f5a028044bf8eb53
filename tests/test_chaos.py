"""Chaos and its ends, on the real engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from codedfedl.cli.federate_local import local_experiment
from codedfedl.data import load_dataset
from codedfedl.federate.deploy.local import LocalFederation, local_keys, write_shards
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.chaos import Chaos

pytestmark = [pytest.mark.engine, pytest.mark.long]


def federate(*options: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "codedfedl", "federate", *options, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def test_chaos_loses_no_round(tmp_path: Path) -> None:
    """Whatever is killed, every round is played exactly once, and the replay gives the model."""
    clients, rounds, deadline = 3, 25, 12.0
    changes = {
        "federation.rounds": rounds,
        "federation.clients": clients,
        "federation.deadline": deadline,
        "federation.test": str(tmp_path / "local" / "data" / "test.npz"),
        "fleet.name": str(tmp_path / "run" / "fleet.csv"),
        "federation.probes": 2,
    }
    experiment = local_experiment({"name": "coded"}, changes, {})
    directory = RunDirectory(tmp_path / "run")
    directory.open(experiment, resume=False)
    shards = write_shards(experiment, load_dataset("digits"), tmp_path / "local" / "data")
    keys = local_keys(tmp_path / "local" / "keys", clients)
    with LocalFederation(tmp_path / "local", shards, keys=keys) as local:
        chaos = Chaos(local, directory, seed=3, say=print)
        chaos.play(rounds * deadline, patience=600.0)
    records = Journal(directory.path).records()
    assert [record.round for record in records if not record.is_setup] == list(range(rounds))
    assert replay(directory).difference < 1e-4
    assert sum(chaos.faults.values()) >= 5


def test_nobody_ever_arrives(tmp_path: Path) -> None:
    """The JSON is still printed, the exit code is 1, and the last line says what to change."""
    options = ["--clients", "2", "--rounds", "2", "--deadline", "0.1", "--scheme", "coded-newton"]
    options += ["--set", "federation.probes=1", "--out", str(tmp_path / "run")]
    done = federate("local", *options, timeout=300)
    assert done.returncode == 1, done.stderr
    assert [row["arrived"] for row in json.loads(done.stdout)["rounds"]] == [0, 0]
    assert "raise federation.deadline" in done.stderr
