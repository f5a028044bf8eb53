"""`examples/paced-flower` on a virtual clock: its own client code, and Flower's own strategy.

Run with `python -m benchmarks.paced_flower [--seeds N] [--equal]`. A batch takes `--pause` seconds
(ten times that on two of eight nodes), and every question `--floor` seconds beside it, within a
factor e^±0.2: what a SuperNode needs to start a process for a message. Waiting for all plays
`--rounds` rounds; whatever else is compared has as many seconds. With `--equal` no node is slow.
"""

import argparse
import random
import sys
import tempfile
import time
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from tests.paced_world import World, pace, window_of

from codedfedl.pacing.flower.batches import TimedBatches

APP = Path(__file__).parent.parent / "examples" / "paced-flower"
sys.path.insert(0, str(APP))
import client_app  # type: ignore[import-not-found]  # noqa: E402
import network  # type: ignore[import-not-found]  # noqa: E402
import run  # type: ignore[import-not-found]  # noqa: E402

NODES, SPREAD = 8, 0.2


class VirtualTime:
    """What the client takes for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        """Return the virtual clock."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.now += seconds


class OverError(Exception):
    """The time is over."""


def play(wait: str, seed: int, until: float, rounds: int, options: argparse.Namespace) -> Any:
    """Return the seconds and accuracies of all rounds."""
    folder, clock = Path(options.folder), VirtualTime()
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    random.seed(seed)
    client_app.time = clock
    client_app.timed = lambda msg, loader: TimedBatches(
        loader, window_of(msg), clock=clock.monotonic
    )

    def answer(message: Message, _asked: int) -> RecordDict:
        j, clock.now = message.metadata.dst_node_id - 1, 0.0
        slow = 10.0 if j in run.SLOW and not options.equal else 1.0
        silent = 6 if j == run.SILENT and not options.equal else -1
        node = {"data": str(folder / f"node-{j}.npz"), "pause": slow * options.pause}
        node |= {"silent-round": silent, "silent-seconds": 60.0}
        reply: Message = client_app.train(message, SimpleNamespace(node_config=node))
        return reply.content

    def seconds(_node: int, _asked: int) -> float:
        return float(clock.now + options.floor * np.exp(rng.normal(0.0, SPREAD)))

    world, rows, model = World(range(1, NODES + 1), answer, seconds), [], network.network()
    images, labels = network.read(str(folder / "test.npz")).tensors

    def evaluate(_round: int, arrays: ArrayRecord) -> None:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).float().mean()
        rows.append((world.clock, 100 * float(right)))
        if world.clock > until:
            raise OverError

    strategy = FedAvg(fraction_evaluate=0.0)
    grid: Any = pace(world, strategy) if wait == "paced" else world
    timeout = 1e6 if wait in ("all", "paced") else float(wait)
    begin = ArrayRecord(model.state_dict())
    try:
        strategy.start(
            grid=grid,
            initial_arrays=begin,
            num_rounds=rounds,
            timeout=timeout,
            evaluate_fn=evaluate,
        )
    except OverError:
        rows.pop()
    return np.array(rows)


def accuracy(rows: Any, until: float) -> float:
    """Return the mean accuracy of the last three rounds until then."""
    return float(rows[rows[:, 0] <= until][-3:, 1].mean())


def main() -> None:
    """Print a line for each way to wait, with means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.3)
    parser.add_argument("--floor", type=float, default=5.0)
    parser.add_argument("--timeouts", nargs="*", default=["12", "16", "30"])
    parser.add_argument("--equal", action="store_true")
    options = parser.parse_args()
    results: dict[str, list[tuple[float, ...]]] = {}
    with tempfile.TemporaryDirectory() as options.folder:
        run.deal(Path(options.folder), "mnist", NODES, 640)
        for seed in range(options.seeds):
            end = inf
            for wait in ["all", "paced", *([] if options.equal else options.timeouts)]:
                began, rounds = time.process_time(), options.rounds
                if wait != "all" and not options.equal:
                    rounds = 1000
                rows = play(wait, seed, end, rounds, options)
                end = min(end, rows[-1, 0]) if not options.equal else inf
                found = accuracy(rows, end / 3), accuracy(rows, end), rows[-1, 0] / (len(rows) - 1)
                results.setdefault(wait, []).append(found)
                print(wait, seed, [round(x, 2) for x in found], len(rows), flush=True)
                print(f"  {time.process_time() - began:.0f} s of processor time", file=sys.stderr)
    print("wait   accuracy at a third of the time   at the end   seconds a round")
    for wait, each in results.items():
        third, last, a_round = np.mean(each, axis=0)
        print(f"{wait:6} {third:31.1f} {last:12.1f} {a_round:17.2f}")


if __name__ == "__main__":
    main()
