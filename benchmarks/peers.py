"""Peers side by side: rounds of federated gradient descent in our simulator and in others.

Run with `python -m benchmarks.peers [--rounds R] [--repeats N] [--cores N] [--peer NAME …]`, after
`pip install -r benchmarks/requirements-peers.txt`; a peer whose packages are missing is left out.
30 clients with 400 points of 2,000 features and ten labels each: a round is everybody's gradient
and a step; with evaluation, also the accuracy on 10,000 test points after every round. Every run
is a process of its own on the same cores; the best of some repeats counts, as they take turns.
Whatever is compiled or multiplied once is charged, spread over the rounds; imports, data and the
start of a framework's processes are not. All peers must end with the same test accuracy.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

STEP = 1 / 40  # for sums of gradients; the largest that converges is about 1/6
SETTINGS = 10


@dataclass(frozen=True)
class Sizes:
    """How much data there is; all points have a label that a linear model explains in part."""

    clients: int = 30
    points: int = 400
    features: int = 2000
    labels: int = 10
    tests: int = 10_000

    @property
    def shape(self) -> tuple[int, int]:
        """Of the model."""
        return self.features, self.labels

    def data(self) -> tuple[Any, Any, Any, Any]:
        """Return points (clients, points, features), one-hot targets, test points and labels."""
        rng = np.random.default_rng(0)
        count = self.clients * self.points + self.tests
        x = rng.standard_normal((count, self.features), dtype=np.float32) / self.features**0.5
        scores = x @ rng.standard_normal(self.shape, dtype=np.float32)
        labels = (scores + 0.3 * rng.gumbel(size=scores.shape)).argmax(1)
        train, test = x[: -self.tests], x[-self.tests :]
        y = np.eye(self.labels, dtype=np.float32)[labels[: -self.tests]]
        own = (self.clients, self.points, -1)
        return train.reshape(own), y.reshape(own), test, labels[-self.tests :]


FULL, TINY = Sizes(), Sizes(clients=4, points=2, features=3, labels=2, tests=10)

Play = Callable[[], tuple[float, float]]
"""Plays all rounds; returns the last test accuracy, NaN without evaluation, and the seconds."""


def timed(rounds: Callable[[], Any]) -> Play:
    """Return how to play rounds that take all the time there is."""

    def play() -> tuple[float, float]:
        began = time.perf_counter()
        accuracy = float(rounds())
        return accuracy, time.perf_counter() - began

    return play


def _loop(data: Any, model: Any, rounds: int, evaluates: bool) -> Play:
    """Return a loop over rounds and clients, on arrays of any kind."""
    x, y, test, labels = data

    def play() -> Any:
        nonlocal model
        accuracy = np.nan
        for _ in range(rounds):
            total = model * 0
            for features, targets in zip(x, y, strict=True):
                total += features.T @ (features @ model - targets)
            model = model - STEP * total
            if evaluates:
                accuracy = float(((test @ model).argmax(1) == labels).sum() / len(labels))
        return accuracy

    return timed(play)


def numpy_loop(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    return _loop(sizes.data(), np.zeros(sizes.shape, np.float32), rounds, evaluates)


def pytorch_loop(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    torch: Any = import_module("torch")
    data = [torch.from_numpy(part) for part in sizes.data()]
    return _loop(data, torch.zeros(sizes.shape), rounds, evaluates)


def jax_scan(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    """Compile all rounds into one program, with the points of all clients in one product."""
    jax: Any = import_module("jax")
    x, y, test, labels = map(jax.numpy.asarray, sizes.data())
    x, y = x.reshape(-1, sizes.features), y.reshape(-1, sizes.labels)

    def one(model: Any, _: None) -> tuple[Any, Any]:
        model = model - STEP * (x.T @ (x @ model - y))
        accuracy = ((test @ model).argmax(1) == labels).mean() if evaluates else np.nan
        return model, accuracy

    scan = jax.jit(lambda start: jax.lax.scan(one, start, None, length=rounds))

    def play() -> Any:
        model, accuracies = scan(jax.numpy.zeros(sizes.shape))
        model.block_until_ready()
        return accuracies[-1]

    return timed(play)


def ours(sizes: Sizes, rounds: int, evaluates: bool, settings: int = 1) -> Play:
    """Play `uncoded`, or a sweep of settings on the same data."""
    from codedfedl import Experiment
    from codedfedl.data.dataset import Dataset
    from codedfedl.learning.features import Identity
    from codedfedl.simulation.engine import Simulation, entries
    from codedfedl.simulation.units import prepare

    x, y, test, test_labels = sizes.data()
    points, labels = x.reshape(-1, sizes.features), y.reshape(-1, sizes.labels).argmax(1)
    data = Dataset("made", points, labels, test, test_labels, classes=sizes.labels)
    schemes = [{"name": "uncoded"}, *({"name": "greedy", "drop": d / 30} for d in range(1, 10))]
    step = STEP * len(points)  # for means of gradients
    training = {"epochs": rounds, "step": step, "decay_epochs": [], "ridge": 0.0}
    experiment = Experiment.model_validate(
        {
            "data": {"name": "digits", "partition": "iid", "batches": 1},
            "fleet": {"clients": sizes.clients},
            "training": training,
            "schemes": schemes[:settings],
        }
    )
    problem, task, fleet = prepare(experiment, data, 0, Identity(), "cpu")

    def play() -> float:
        simulation = Simulation(problem, entries(task, fleet, experiment.build_schemes()), 0)
        if not evaluates:
            simulation.measuring.add = lambda settings: None  # type: ignore[method-assign]
        assert max(simulation.run()) == rounds
        return float(simulation.settings[0].records[-1].metric)

    return timed(play)


def ours_in_a_sweep(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
    return ours(sizes, rounds, evaluates, SETTINGS)


def _framework(name: str) -> Callable[[Sizes, int, bool], Play]:
    """Return a peer that is a framework; its file is read when it is played."""

    def prepare(sizes: Sizes, rounds: int, evaluates: bool) -> Play:
        chosen = getattr(import_module("benchmarks.peer_frameworks"), name)
        found: Play = chosen(sizes, rounds, evaluates)
        return found

    return prepare


@dataclass(frozen=True)
class Peer:
    """What is compared.

    Attributes
    ----------
    package
        What must be installed.
    fewer
        How many times fewer rounds are played: for those that take long and prepare nothing.
    """

    package: str
    prepare: Callable[[Sizes, int, bool], Play]
    settings: int = 1
    fewer: int = 1


PEERS: dict[str, Peer] = {
    "codedfedl, uncoded": Peer("codedfedl", ours),
    "codedfedl, ten settings": Peer("codedfedl", ours_in_a_sweep, SETTINGS),
    "JAX scan": Peer("jax", jax_scan),
    "NumPy loop": Peer("numpy", numpy_loop, fewer=20),
    "PyTorch loop": Peer("torch", pytorch_loop, fewer=20),
    "fedjax": Peer("fedjax", _framework("fedjax_loop")),
    "pfl-research": Peer("pfl", _framework("pfl_loop"), fewer=20),
    "Flower's simulation": Peer("ray", _framework("flower_simulation"), fewer=20),
}


def measure(name: str, kind: str, rounds: int) -> dict[str, float]:
    """Measure a peer in this process: `plain` rounds, with `evaluation`, or on `tiny` data."""
    peer = PEERS[name]
    rounds = max(1, rounds // peer.fewer)
    sizes = TINY if kind == "tiny" else FULL
    if kind == "tiny" and peer.package != "ray":
        peer.prepare(sizes, rounds, False)()  # warm up
    accuracy, seconds = peer.prepare(sizes, rounds, kind == "evaluation")()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if kind != "tiny" and peer.package == "ray":
        peak += import_module("benchmarks.peer_frameworks").workers_gib()
    each = seconds / rounds / peer.settings
    return {"seconds": each, "accuracy": accuracy, "rounds": rounds, "gib": peak}


def measured(name: str, kind: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure a peer in a process of its own; what it prints is not for this table."""
    command = [sys.executable, "-m", "benchmarks.peers", "--rounds", str(options.rounds)]
    command += ["--cores", str(options.cores), "--peer", name, "--kind", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}, {kind}: {done.stderr[-2000:]}", file=sys.stderr)
        return dict.fromkeys(("seconds", "accuracy", "rounds", "gib"), np.inf)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--peer", nargs="*", default=list(PEERS))
    parser.add_argument("--kind", choices=("plain", "evaluation", "tiny"), help="one, as JSON")
    options = parser.parse_args()
    if options.kind:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        print(json.dumps(measure(options.peer[0], options.kind, options.rounds)))
        return
    print(f"{FULL}, {options.rounds} rounds, {options.cores} cores, best of {options.repeats}")
    names = [name for name in options.peer if find_spec(PEERS[name].package)]
    print(*(f"  {name}: not installed" for name in options.peer if name not in names), sep="\n")
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(options.repeats):
        for name in names:
            for kind in ("plain", "evaluation", "tiny"):
                runs.setdefault((name, kind), []).append(measured(name, kind, options))
    print(f"{'':26} rounds/s  with evaluation  on tiny data, ms  peak, GiB  accuracy after")
    for name in names:
        plain, scored, tiny = (
            min(runs[name, kind], key=lambda run: run["seconds"])
            for kind in ("plain", "evaluation", "tiny")
        )
        print(
            f"  {name:24} {1 / plain['seconds']:8.2f} {1 / scored['seconds']:16.2f} "
            f"{1e3 * tiny['seconds']:18.3f} {plain['gib']:10.2f} "
            f"{scored['accuracy']:9.4f} {scored['rounds']:5.0f}"
        )


if __name__ == "__main__":
    main()
