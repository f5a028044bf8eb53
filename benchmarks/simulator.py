"""The simulator: a round of ten settings against a plain float32 loop over the 30 clients.

Run with `python -m benchmarks.simulator [--device cpu|cuda] [--rounds R]` and CODEDFEDL_DATA set.
Both sides have the same threads. What the quadratics cost once is shown beside, spread over the
rounds of a run, and the ratios are given with and without it. On a GPU it is ten, thirty and a
hundred settings.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import to_device
from codedfedl.experiments import built_in
from codedfedl.learning.least_squares import Quadratic
from codedfedl.simulation.client_data import Batch
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.units import prepare

# Table 1's settings, their neighbours in redundancy, and one more greedy.
SETTINGS: list[dict[str, Any]] = [
    {"name": "uncoded"},
    {"name": "greedy", "drop": 0.05},
    {"name": "greedy", "drop": 0.1},
    {"name": "greedy", "drop": 0.2},
    *({"name": "coded", "redundancy": r} for r in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
]


def settings(count: int) -> list[dict[str, Any]]:
    """Return the ten settings, and others with parity that is made fast."""
    shares = np.linspace(0.05, 0.3, max(count - len(SETTINGS), 0))
    more = [{"name": "coded", "redundancy": float(r), "code": "sparse"} for r in shares]
    return [*SETTINGS, *more]


def build(schemes: list[dict[str, Any]], device: str) -> tuple[Simulation, float]:
    """Return a simulation on MNIST, and the seconds that its quadratics took."""
    from codedfedl.data import load_dataset
    from codedfedl.learning.features import RandomFourier

    experiment = built_in("table1-mnist").model_copy(update={"schemes": []})
    experiment = type(experiment).model_validate(
        experiment.model_dump(exclude_none=True) | {"schemes": schemes}
    )
    problem, task, fleet = prepare(experiment, load_dataset("mnist"), 0, RandomFourier(), device)
    simulation = Simulation(problem, entries(task, fleet, experiment.build_schemes()), 0)
    begin = time.perf_counter()
    for setting in simulation.settings:  # the parity's own, which came with the set-up, once more
        for part in getattr(setting.state, "plans", ()):
            features = problem.batches[0].features[: part.parity_rows]
            Quadratic.of(features, problem.batches[0].targets[: part.parity_rows])
    for batch in range(len(problem.batches)):
        for setting in simulation.settings:
            _prepare(simulation, setting, batch)
    _wait(simulation)
    return simulation, time.perf_counter() - begin


def _prepare(simulation: Simulation, setting: Setting, batch: int) -> None:
    """Compute the Gram matrix that a setting reads in rounds on a mini-batch."""
    ask = setting.scheme.ask(replace(setting.state, round=batch))
    parity = getattr(setting.state, "parity", ())
    assert ask is not None
    assert simulation.fast is not None
    if parity and ask.loads is not None:
        simulation.fast.grams.of(batch, ask.loads, parity[batch])
    assert simulation.problem.batches[batch].everything.hessian is not None


def _wait(simulation: Simulation) -> None:
    """Wait until a GPU is done."""
    float(array_namespace(simulation.problem.test_features).sum(simulation.settings[0].state.model))


class Naive:
    """A plain loop: the gradient of each client, and the coded gradient, one after the other."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        rng = np.random.default_rng(0)
        q, c = 2000, 10
        self.model = rng.standard_normal((q, c)).astype(np.float32)
        self.parity = rng.standard_normal((1200, q)).astype(np.float32)
        self.parity_targets = rng.standard_normal((1200, c)).astype(np.float32)

    def round(self) -> None:
        """Add up one round."""
        batch: Batch = self.simulation.problem.batches[0]
        total = np.zeros_like(self.model)
        for j in range(batch.clients):
            features, targets = batch.client(j)
            total += features.T @ (features @ self.model - targets)
        residual = self.parity @ self.model - self.parity_targets
        total += self.parity.T @ residual

    def evaluate(self) -> None:
        """Compute one test accuracy."""
        problem = self.simulation.problem
        predictions = problem.test_features @ self.model
        (predictions.argmax(1) == problem.test_classes).mean()


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def play(simulation: Simulation, rounds: int, *, evaluate: bool) -> float:
    """Return the seconds of a round, with or without the test accuracy."""
    measure, played = simulation.measuring.add, simulation.run()
    if not evaluate:
        simulation.measuring.add = lambda settings: None  # type: ignore[method-assign]
    while next(played) < 30:  # warm up
        pass
    _wait(simulation)
    first, begin = simulation.round, time.perf_counter()
    while next(played) < first + rounds:
        pass
    _wait(simulation)
    seconds = time.perf_counter() - begin
    simulation.measuring.add = measure  # type: ignore[method-assign]
    return seconds / (simulation.round - first)


def floors(simulation: Simulation) -> float:
    """Measure memory bandwidth and matrix speed, and return what they allow, in seconds."""
    big = np.ones(24_000_000, dtype=np.float32)
    read = big.nbytes / median_seconds(big.sum, 5)
    gram, ten = np.ones((2000, 2000), np.float32), np.ones((2000, 40), np.float32)
    multiply = 2 * 2000 * 2000 * 40 / median_seconds(lambda: gram @ ten, 20)
    late = [~record.arrived for setting in simulation.settings for record in setting.rounds]
    missed = np.mean(late) * 30 * len(SETTINGS)
    shared = 4 * 2 * 2000 * 2000 * 10 + missed * 400 * 2000 * 10 * 4
    floor = float((6 * 16e6 / read + shared / multiply) / len(SETTINGS))
    print(f"  memory {read / 1e9:.1f} GB/s, products {multiply / 1e9:.0f} GFLOP/s; floor: six Gram")
    print(f"  matrices read, four products shared, {missed:.0f} missing replies: {floor * 1e3:.3f}")
    return floor


def compare(device: str, rounds: int) -> None:
    ten, preparing = build(SETTINGS, device)
    spread = preparing / ten.rounds / len(SETTINGS)
    plain = play(ten, rounds, evaluate=False) / len(SETTINGS)
    tested = play(ten, rounds, evaluate=True) / len(SETTINGS)
    print(f"Ten settings on {device}, milliseconds a round and setting")
    print(f"  gradients {plain * 1e3:8.3f}   with test accuracy {tested * 1e3:8.3f}")
    print(f"  quadratics, spread over {ten.rounds} rounds {spread * 1e3:8.3f}")
    print(f"  ratio to the floor {plain / floors(ten):6.1f}")
    naive = Naive(ten)
    gradients = median_seconds(naive.round, 20)
    testing = median_seconds(naive.evaluate, 20)
    print(f"  plain loop: gradients {gradients * 1e3:.2f}, test accuracy {testing * 1e3:.2f}")
    print(f"  ratio without test accuracy {gradients / plain:6.1f}, ", end="")
    print(f"quadratics charged {gradients / (plain + spread):6.1f}")
    print(f"  ratio with test accuracy    {(gradients + testing) / tested:6.1f}, ", end="")
    print(f"quadratics charged {(gradients + testing) / (tested + spread):6.1f}")
    del ten
    single, preparing = build([{"name": "coded", "redundancy": 0.1}], device)
    spread = preparing / single.rounds
    alone = play(single, rounds, evaluate=False)
    print(
        f"One coded run at 10%: {alone * 1e3:.2f} ms a round, ratio {gradients / alone:.1f}, ",
        end="",
    )
    print(f"quadratics charged {gradients / (alone + spread):.1f}")


def on_gpu(device: str, rounds: int) -> None:
    """Time rounds with test accuracy on a GPU."""
    print(f"Settings on {device}, milliseconds a round and setting with test accuracy")
    for count in (10, 30, 100):
        simulation, _ = build(settings(count), device)
        seconds = play(simulation, rounds, evaluate=True) / count
        print(f"  {count:4} {seconds * 1e3:8.4f}, {simulation.round} rounds")


def growth() -> None:
    """Time per round as rounds, clients and points grow: the last column stays."""
    from codedfedl.data import load_dataset
    from codedfedl.learning.features import RandomFourier

    print("Growth, coded at 10%, 500 features: milliseconds a round")
    for clients, share in ((30, 1), (30, 2), (30, 4), (60, 1), (120, 1), (240, 1)):
        experiment = built_in("table1-mnist", {"fleet.clients": clients, "fleet.k2": 0.99})
        dataset = load_dataset("mnist")
        part = slice(None, None, 4 // share)
        dataset = type(dataset)(
            dataset.name,
            dataset.inputs[part],
            dataset.labels[part],
            dataset.test_inputs,
            dataset.test_labels,
            dataset.classes,
        )
        features = RandomFourier(500)
        problem, task, fleet = prepare(experiment, dataset, 0, features, "cpu")
        schemes = {"coded 10%": experiment.build_schemes()["coded 10%"]}
        begin = time.perf_counter()
        simulation = Simulation(problem, entries(task, fleet, schemes), 0)
        setup = time.perf_counter() - begin
        seconds = play(simulation, 40, evaluate=False)
        print(
            f"  {clients:4} clients, {len(dataset.inputs):6,} points: "
            f"{seconds * 1e3:6.2f}, parity {setup:5.2f} s"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=40, help="at most 200 of a run's 500")
    options = parser.parse_args(arguments)
    assert 1 <= options.rounds <= 200
    to_device(np.zeros(1), options.device)
    if options.device == "cpu":
        compare(options.device, options.rounds)
        growth()
    else:
        on_gpu(options.device, options.rounds)


if __name__ == "__main__":
    main()
