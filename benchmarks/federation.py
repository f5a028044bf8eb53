"""What a federation's server holds while many nodes send it much parity.

Real processes on loopback. Each node sends 50 MB; the server must hold the sum and a few parts,
whatever their number. `python -m benchmarks.federation`
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from codedfedl.data import load_dataset
from codedfedl.federate.deploy.local import SUPERLINK, LocalFederation, write_shards
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.runs.journal import Journal

FEATURES = 8800  # with 1,423 rows of float32: 50 MB


@dataclass
class Measured:
    """MB and seconds of one federation."""

    nodes: int
    parity: float
    server_before: float
    server_peak: float
    link_peak: float
    seconds: float


def experiment_of(nodes: int) -> Experiment:
    scheme = {"name": "coded", "redundancy": 0.99}
    table = {"clients": nodes, "rounds": 1, "deadline": 60.0, "probes": 1, "ready_timeout": 600.0}
    return check(
        {
            "data": {"name": "digits", "batches": 1},
            "features": {"n_components": FEATURES, "sigma": 2.0},
            "training": {"step": 6.0, "decay_epochs": [40, 65], "ridge": 9e-6},
            "schemes": [scheme],
            "federation": table,
        },
        "the benchmark",
    )


def measure(nodes: int, folder: Path) -> Measured:
    experiment, directory = experiment_of(nodes), RunDirectory(folder / "run")
    directory.open(experiment, resume=False)
    journal = Journal(directory.path)
    shards = write_shards(experiment, load_dataset("digits"), folder / "data")
    with LocalFederation(folder / "local", shards) as local:
        local.submit(directory.path / "config.toml", directory.path)
        _wait(journal.traces.is_file, 900, local)
        server = _server(folder)
        before, began, peak, link = _own(server), time.monotonic(), 0.0, 0.0
        while len(Journal(journal.folder).stored.points) < nodes and time.monotonic() < began + 900:
            peak, link = max(peak, _own(server)), max(link, _own(local.processes[SUPERLINK].pid))
            time.sleep(0.1)
        seconds = time.monotonic() - began
        _wait(lambda: " done: " in directory.log.read_text("utf-8"), 900, local)
    sent = sum(path.stat().st_size for path in journal.stored.folder.rglob("*.npy")) / 1e6
    return Measured(nodes, sent, before, peak, link, seconds)


def _wait(done: Callable[[], bool], seconds: float, local: LocalFederation) -> None:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise SystemExit("the federation does not go on")
        local.revive()
        time.sleep(0.5)


def _server(folder: Path) -> int:
    """Return the process of the server app of the federation in a folder."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mine = str(folder).encode() in (place / "environ").read_bytes()
            if mine and b"flwr-serverapp" in (place / "cmdline").read_bytes():
                return int(place.name)
    raise SystemExit("there is no server app")


def _own(pid: int) -> float:
    """Return the MB of memory that a process has for itself, files not counted."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[6, 30])
    print("nodes  parity, MB  server: before, MB  at most, MB  SuperLink: at most, MB  seconds")
    for nodes in parser.parse_args().nodes:
        with tempfile.TemporaryDirectory() as folder:
            m = measure(nodes, Path(folder))
            print(
                f"{m.nodes:5}  {m.parity:10,.0f}  {m.server_before:18,.0f}  {m.server_peak:11,.0f}"
                f"  {m.link_peak:22,.0f}  {m.seconds:7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
