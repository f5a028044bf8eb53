"""Ten thousand clients: `python -m benchmarks.scale [--clients N …] [--scheme NAME …]`.

Each client has sixty points of MNIST, ten copies of each image, shifted by up to two pixels; needs
CODEDFEDL_DATA. Every row is a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np

from codedfedl.data import Dataset, load_dataset
from codedfedl.experiments import built_in
from codedfedl.learning.features import RandomFourier
from codedfedl.simulation.engine import Simulation, entries
from codedfedl.simulation.run import prepare

POINTS = 60
ROUNDS = 20
SCHEMES = ("uncoded", "coded", "coded-newton")


def shifted(points: int) -> Dataset:
    """Return MNIST with so many training points, each an image moved by up to two pixels."""
    mnist = load_dataset("mnist")
    rng = np.random.default_rng(0)
    chosen = np.arange(points) % len(mnist.inputs)
    inputs = np.empty((points, 28 * 28), dtype=np.float32)
    for begin in range(0, points, 10_000):
        some = mnist.inputs[chosen[begin : begin + 10_000]].reshape(-1, 28, 28)
        down, right = rng.integers(-2, 3, (2, len(some)))
        place = np.arange(len(some))[:, None, None]
        padded = np.pad(some, ((0, 0), (2, 2), (2, 2)))
        rows, columns = (2 + np.arange(28) - by[:, None] for by in (down, right))
        moved = padded[place, rows[:, :, None], columns[:, None, :]]
        inputs[begin : begin + 10_000] = moved.reshape(len(some), -1)
    return replace(mnist, inputs=inputs, labels=mnist.labels[chosen])


def measure(scheme: str, clients: int) -> dict[str, float]:
    """Play some rounds and return what they took."""
    settings = {"name": scheme} | ({"redundancy": 0.02} if scheme == "coded" else {})
    finer = 30 / clients  # speeds span the paper's range on a finer ladder
    ladder = {"clients": clients, "k1": 0.95**finer, "k2": 0.8**finer}
    changes = {f"fleet.{name}": value for name, value in ladder.items()}
    changes |= {"schemes": [settings], "data.batches": 5, "training.epochs": ROUNDS // 5}
    experiment = built_in("setting-thousand", changes)
    begin = time.perf_counter()
    data = shifted(clients * POINTS)
    made = time.perf_counter()
    problem, task, fleet = prepare(experiment, data, 0, RandomFourier(), "cpu")
    embedded = time.perf_counter()
    del data
    simulation = Simulation(problem, entries(task, fleet, experiment.build_schemes()), 0)
    ready = time.perf_counter()
    times = [time.perf_counter(), *(time.perf_counter() for _ in simulation.run())]
    setting = simulation.settings[0]
    return {
        "data_s": made - begin,
        "features_s": embedded - made,
        "setup_s": ready - embedded,
        "first_rounds_s": times[min(5, len(times) - 1)] - times[0],  # with their Gram matrices
        "round_ms": float(np.median(np.diff(times)[5:])) * 1e3,
        "accuracy": float(setting.records[-1].metric),
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[2_500, 5_000, 10_000])
    parser.add_argument("--scheme", nargs="*", default=list(SCHEMES))
    parser.add_argument("--one", action="store_true", help="measure in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.scheme[0], options.clients[0])))
        return
    print("scheme        clients   points  features s  set-up s  ms a round  accuracy   GiB")
    for scheme in options.scheme:
        for clients in options.clients:
            command = [sys.executable, "-m", "benchmarks.scale", "--one"]
            command += ["--scheme", scheme, "--clients", str(clients)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"{scheme:<12} {clients:>8,} {clients * POINTS:>8,} {found['features_s']:>11.1f} "
                f"{found['setup_s']:>9.1f} {found['round_ms']:>11.1f} {found['accuracy']:>9.4f} "
                f"{found['gib']:>5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
