"""Chaos and its ends, on the real engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.long]


def federate(*options: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "codedfedl", "federate", *options, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def test_chaos_loses_no_round(tmp_path: Path) -> None:
    done = federate(
        "chaos", "--minutes", "2", "--seed", "3", "--out", str(tmp_path / "run"), timeout=900
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["each_once"]
    assert found["replay_difference"] < 1e-4
    assert sum(found["faults"].values()) >= 5


def test_nobody_ever_arrives(tmp_path: Path) -> None:
    """The JSON is still printed, the exit code is 1, and the last line says what to change."""
    options = ["--clients", "2", "--rounds", "2", "--deadline", "0.1", "--scheme", "coded-newton"]
    options += ["--set", "federation.probes=1", "--out", str(tmp_path / "run")]
    done = federate("local", *options, timeout=300)
    assert done.returncode == 1, done.stderr
    assert [row["arrived"] for row in json.loads(done.stdout)["rounds"]] == [0, 0]
    assert "raise federation.deadline" in done.stderr
