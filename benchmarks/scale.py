"""Many clients: `python -m benchmarks.scale [--clients N …] [--scheme NAME …] [--points K …]`.

Each client has sixty points of MNIST, copies of its images shifted by up to two pixels; needs
CODEDFEDL_DATA. Every row is a process of its own, so that its peak memory is its own. Features are
streamed where they do not fit in memory, and with `--streamed`; such points are shifted, too, when
they are needed.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.data import Dataset, load_dataset
from codedfedl.data.dataset import Rows
from codedfedl.experiments import built_in
from codedfedl.learning.features import Structured
from codedfedl.runs.grid import cells
from codedfedl.simulation.client_data import too_large
from codedfedl.simulation.engine import Simulation
from codedfedl.simulation.units import SeedUnit

SCHEMES = ("uncoded", "coded", "coded-newton")
SETTINGS: dict[str, dict[str, Any]] = {
    "coded": {"redundancy": 0.02},
    "sketch-solve": {"mixing": 60},
}


class Shifted(Rows):
    """Images of 28 × 28 pixels, over and over, each moved by up to two pixels."""

    def __init__(self, images: npt.NDArray[np.float32], points: int) -> None:
        rng = np.random.default_rng(0)
        sizes = [min(10_000, points - begin) for begin in range(0, points, 10_000)]
        shifts = [rng.integers(-2, 3, (2, size)).astype(np.int8) for size in sizes]
        self._shifts = np.concatenate(shifts, axis=1)
        self._padded = np.pad(images.reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2)))

    @property
    def shape(self) -> tuple[int, int]:
        """Points and pixels."""
        return self._shifts.shape[1], 28 * 28

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        chosen = np.arange(len(self))[rows] if isinstance(rows, slice) else rows
        down, right = self._shifts[:, chosen].astype(np.int64)
        image = (chosen % len(self._padded))[:, None, None]
        along, across = (2 + np.arange(28) - by[:, None] for by in (down, right))
        moved = self._padded[image, along[:, :, None], across[:, None, :]]
        return np.asarray(moved.reshape(len(chosen), 28 * 28))


def shifted(points: int, *, streamed: bool) -> Dataset:
    """Return MNIST with so many training points, each an image moved by up to two pixels."""
    mnist = load_dataset("mnist")
    made: Any = Shifted(mnist.inputs, points)
    if not streamed:
        parts = [made[begin : begin + 10_000] for begin in range(0, points, 10_000)]
        made = np.concatenate(parts)
    return replace(mnist, inputs=made, labels=mnist.labels[np.arange(points) % len(mnist.inputs)])


def measure(
    scheme: str, clients: int, points: int, rounds: int, *, streamed: bool
) -> dict[str, float]:
    """Play some rounds and return what they took."""
    settings = {"name": scheme} | SETTINGS.get(scheme, {})
    settings |= {"rounds": rounds} if scheme == "coded-newton" else {}
    finer = 30 / clients  # speeds span the paper's range on a finer ladder
    ladder = {"clients": clients, "k1": 0.95**finer, "k2": 0.8**finer}
    changes: dict[str, Any] = {f"fleet.{name}": value for name, value in ladder.items()}
    changes |= {"schemes": [settings], "data.batches": 5, "training.epochs": -(-rounds // 5)}
    features = Structured()
    streamed = streamed or too_large(clients * points, features.n_components)
    changes |= {"training.objective": False} if streamed else {}
    experiment = built_in("setting-thousand", changes)
    begin = time.perf_counter()
    data = shifted(clients * points, streamed=streamed)
    made = time.perf_counter()
    unit = SeedUnit(0, features, data, tuple(cells(experiment)))
    entries = unit.contenders()
    dealt = time.perf_counter()
    problem = unit.problem(streamed=streamed)
    embedding = time.perf_counter()
    del data, unit
    simulation = Simulation(problem, entries, 0)
    ready = time.perf_counter()
    ended = [(0, ready), *((rounds, time.perf_counter()) for rounds in simulation.run())]
    setting = simulation.settings[0]
    played, times = np.array(ended).T
    first = min(np.searchsorted(played, 5), len(played) - 1)  # with their Gram matrices
    later = np.diff(times[first:]) / np.diff(played[first:])
    return {
        "data_s": made - begin,
        "dealing_s": dealt - made,
        "features_s": embedding - dealt,
        "setup_s": ready - embedding,
        "first_rounds_s": times[first] - ready,
        "round_ms": float(np.median(later)) * 1e3 if len(later) else np.nan,
        "rounds": int(played[-1]),
        "accuracy": float(setting.records[-1].metric),
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[2_500, 5_000, 10_000])
    parser.add_argument("--points", type=int, nargs="*", default=[60], help="of each client")
    parser.add_argument("--rounds", type=int, default=20, help="the first five are not counted")
    parser.add_argument("--scheme", nargs="*", default=list(SCHEMES))
    parser.add_argument("--streamed", action="store_true", help="features when they are needed")
    parser.add_argument("--one", action="store_true", help="measure in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        (scheme,), (clients,), (points,) = options.scheme, options.clients, options.points
        print(
            json.dumps(measure(scheme, clients, points, options.rounds, streamed=options.streamed))
        )
        return
    print("scheme        clients    points  data s  features s  set-up s  first five s", end="")
    print("  ms a round  accuracy   GiB")
    for scheme in options.scheme:
        seconds: dict[tuple[int, int], float] = {}
        for clients in options.clients:
            for points in options.points:
                command = [sys.executable, "-m", "benchmarks.scale", "--one", "--scheme", scheme]
                command += ["--clients", str(clients), "--points", str(points)]
                command += ["--rounds", str(options.rounds)]
                command += ["--streamed"] * options.streamed
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                found = json.loads(done.stdout)
                seconds[clients, points] = found["round_ms"]
                print(
                    f"{scheme:<12} {clients:>8,} {clients * points:>9,} "
                    f"{found['data_s'] + found['dealing_s']:>7.1f} {found['features_s']:>11.1f} "
                    f"{found['setup_s']:>9.1f} {found['first_rounds_s']:>13.1f} "
                    f"{found['round_ms']:>11.1f} {found['accuracy']:>9.4f} {found['gib']:>5.1f}",
                    flush=True,
                )
        grows(scheme, seconds)


def grows(scheme: str, seconds: Mapping[tuple[int, int], float]) -> None:
    """Print the powers of clients and of points that fit a round's time best."""
    sizes, times = np.log(np.array(list(seconds))), np.log(list(seconds.values()))
    for k, name in enumerate(("clients", "points of each")):
        if len(set(sizes[:, k])) > 1:
            columns = np.column_stack([sizes, np.ones(len(sizes))])
            power = np.linalg.lstsq(columns, times, rcond=None)[0][k]
            print(f"{scheme}: a round takes as long as {name} to the power of {power:.2f}")


if __name__ == "__main__":
    main()
