"""What a round of a federation takes: seconds, and processor seconds of everything together.

Real processes on loopback, `uncoded`, which waits for all. Flower's own way, in which every node
connects to the SuperLink itself and starts a process for every message, beside ours, with a gate
that holds requests, nodes that are one process each, and pulls in one request. Then processor
seconds of the server alone, a round of `coded-newton`, with many nodes in this process.
`python -m benchmarks.rounds`
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from tests.stock import StockFederation

from codedfedl.data import load_dataset
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.deploy import guard
from codedfedl.federate.deploy.local import LocalFederation, write_shards
from codedfedl.federate.flower.apps import federate_on
from codedfedl.federate.flower.messaging import FlowerTransport
from codedfedl.federate.flower.programs import APP
from codedfedl.federate.flower.wire import MalformedError, Pulled, tried
from codedfedl.federate.memory import MemoryTransport, Respond
from codedfedl.federate.node.node import Node
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.runs.watching import look

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")

app = ServerApp()


class OneByOne:
    """A thread for every question and look; one that blocks stays until its answer is there."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._done: SimpleQueue[tuple[str, Pulled | None]] = SimpleQueue()
        self._busy: set[str] = set()
        self._next = 0.0

    def ready(self, waiting: Mapping[str, int | None]) -> Iterator[tuple[str, Pulled]]:
        """Yield what the threads of earlier looks have found."""
        is_due = time.monotonic() > self._next
        if is_due:  # many clients are looked for less often: each look takes 0.03 s of the engine
            self._next = time.monotonic() + 0.03 * len(waiting)
        for identity in waiting.keys() - self._busy if is_due else ():
            self._busy.add(identity)
            look = (identity, waiting[identity])
            threading.Thread(target=self._look, args=look, daemon=True).start()
        while True:
            try:
                identity, pulled = self._done.get_nowait()
            except Empty:
                return
            self._busy.remove(identity)
            if pulled is not None and identity in waiting:
                yield identity, pulled
            del pulled

    def _look(self, identity: str, largest: int | None) -> None:
        try:
            messages = tried(lambda: self._grid.pull_messages([identity]))
            self._done.put((identity, messages[0] if messages else None))
        except (MalformedError, InputError) as error:
            self._done.put((identity, error))


@app.main()
def one_by_one(grid: Grid, context: Context) -> None:
    """Serve with a thread for every question, as Flower's grid has it."""
    federate_on(FlowerTransport(grid, OneByOne), context.run_config)


class Stock(StockFederation):
    """Flower's own nodes, beside the gate."""

    @property
    def address(self) -> str:
        """Where nodes come in: the SuperLink itself."""
        return self.superlink.address


@dataclass(frozen=True)
class Measured:
    """Seconds are a median, processor seconds a mean, over the rounds but the first."""

    seconds: float
    processor: float
    server: float
    threads: int


def experiment_of(nodes: int, rounds: int) -> Experiment:
    waits = {"ready_timeout": 900.0, "probe_timeout": 600.0}
    return check(
        {
            "data": {"name": "digits", "batches": 1},
            "features": {"n_components": 500, "sigma": 2.0},
            "training": {"step": 6.0, "ridge": 9e-6},
            "schemes": [{"name": "uncoded"}],
            "federation": {"clients": nodes, "rounds": rounds, "deadline": 300.0, "probes": 1}
            | waits,
        },
        "the benchmark",
    )


def measure(nodes: int, rounds: int, folder: Path, *, stock: bool) -> Measured:
    """Play a federation; count what all its processes do between two rounds."""
    experiment, directory = experiment_of(nodes, rounds), RunDirectory(folder / "run")
    directory.open(experiment, resume=False)
    shards = write_shards(experiment, load_dataset("digits"), folder / "data")
    kind, application = (Stock, _stock_app(folder)) if stock else (LocalFederation, APP)
    spent: dict[int, tuple[float, float]] = {}
    threads, until = 0, time.monotonic() + 1500
    with kind(folder / "local", shards, app=application) as local:
        local.submit(directory.path / "config.toml", directory.path)
        while len(spent) < rounds:
            if time.monotonic() > until:
                raise SystemExit("the federation does not go on")
            sight = look(directory)
            done = sum(not record.is_setup for record in sight.happened)
            spent.setdefault(done, _processor(local))
            threads = max(threads, _server_threads(local.mark))
            local.revive()
            time.sleep(0.2)
    records = [record for record in look(directory).happened if not record.is_setup]
    first, last = min(spent.keys() - {0}), max(spent)
    nodes_spent, server_spent = (
        (end - begin) / (last - first) for begin, end in zip(spent[first], spent[last], strict=True)
    )
    seconds = statistics.median(record.seconds for record in records[1:])
    return Measured(seconds, nodes_spent + server_spent, server_spent, threads)


def measure_in_memory(nodes: int, rounds: int, folder: Path) -> float:
    """Return the processor seconds that the server itself takes a round, the first left out."""
    document = {
        "features": {"n_components": 500, "sigma": 4.0},
        "schemes": [{"name": "coded-newton"}],
        "federation": {"clients": nodes, "rounds": rounds, "deadline": 60.0, "probes": 1},
    }
    in_nodes, moments = 0.0, list[float]()

    def node(j: int) -> Respond:
        rng = np.random.default_rng(j)
        inputs, labels = rng.random((20, 64)), rng.integers(0, 10, 20)
        shard = Shard(inputs + 2 * np.eye(64)[6 * labels], labels)
        answerer = Node(f"node-{j:04d}", lambda: shard, folder / f"{j}")

        def respond(*question: Any) -> Answered:
            nonlocal in_nodes
            began = time.process_time()
            try:
                return answerer.answer(*question)
            finally:
                in_nodes += time.process_time() - began

        return respond

    def say(sentence: str) -> None:
        if sentence.startswith("round "):
            moments.append(time.process_time() - in_nodes)

    transport = MemoryTransport({j: node(j) for j in range(nodes)}, lambda *_: 30.0)
    federate(transport, check(document, "the benchmark"), RunDirectory(folder / "run"), say)
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def _stock_app(folder: Path) -> Path:
    """Write an app whose server is the one above."""
    text = (APP / "pyproject.toml").read_text("utf-8")
    place = folder / "stock-app"
    place.mkdir()
    ours = "codedfedl.federate.flower.apps:server"
    (place / "pyproject.toml").write_text(text.replace(ours, "benchmarks.rounds:app"), "utf-8")
    return place


def _processor(local: LocalFederation) -> tuple[float, float]:
    """Return the processor seconds of all nodes, and of the server; ended processes count too."""
    nodes = {local.processes[name].pid for name in local.names if name in local.processes}
    ticks = [0, 0]
    for process in guard.marked(local.mark):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            own = sum(int(fields[k]) for k in (11, 12, 13, 14))  # and of those waited for
            ticks[os.getsid(process) not in nodes] += own
    return ticks[0] / TICKS, ticks[1] / TICKS


def _server_threads(mark: str) -> int:
    """Return how many threads the server app has."""
    for process in guard.marked(mark, "flwr-serverapp"):
        with suppress(OSError):
            return len(list(Path(f"/proc/{process}/task").iterdir()))
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[3, 10, 30])
    parser.add_argument("--stock", type=int, nargs="*", default=[3, 10], help="Flower's own way")
    parser.add_argument("--memory", type=int, nargs="*", default=[100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    print("nodes  way     seconds a round  processor seconds: all  server  threads of the server")
    for way, counts in (("Flower", given.stock), ("ours", given.nodes)):
        for nodes in counts:
            with tempfile.TemporaryDirectory() as folder:
                m = measure(nodes, given.rounds, Path(folder), stock=way == "Flower")
            print(
                f"{nodes:5}  {way:6}  {m.seconds:15.2f}  {m.processor:22.2f}  {m.server:6.2f}"
                f"  {m.threads:21}",
                flush=True,
            )
    print("nodes  processor seconds of the server a round, nodes in memory")
    for nodes in given.memory:
        with tempfile.TemporaryDirectory() as folder:
            spent = measure_in_memory(nodes, given.rounds, Path(folder))
        print(f"{nodes:5}  {spent:55.2f}", flush=True)


if __name__ == "__main__":
    main()
