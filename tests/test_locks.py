"""Locks between real processes: one at a time, shared, waited for, and over with a kill."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codedfedl.io.files import lock

HOLD = """
import sys, time
from codedfedl.io.files import lock
with open(sys.argv[1], "w") as file:
    lock(file, shared=sys.argv[2] == "shared")
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
    open(sys.argv[1] + ".over", "w").close()
"""


@contextmanager
def held(path: Path, kind: str = "alone", seconds: float = 60) -> Iterator[None]:
    """Hold a lock in another process, which is killed in the end."""
    command = [sys.executable, "-c", HOLD, str(path), kind, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_one_at_a_time_and_a_kill_ends_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with path.open("w") as file:
        with held(path), pytest.raises(OSError, match="unavailable"):
            lock(file)
        lock(file)


def test_locks_that_are_shared(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with held(path, "shared"), path.open("r") as file:
        lock(file, shared=True)
        with path.open("w") as other, pytest.raises(OSError, match="unavailable"):
            lock(other)


def test_waiting(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with held(path, seconds=0.5), path.open("w") as file:
        lock(file, wait=True)
        assert path.with_name(".lock.over").exists()  # made just before the other let go
