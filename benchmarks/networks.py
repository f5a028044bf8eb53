"""Rounds of a network's clients: this simulator beside a plain PyTorch loop, in one process.

Run with `python -m benchmarks.networks [--repeats N] [--points K]`. Thirty clients train the CNN
`cnn` on made-up images. *Gradients*: everybody's gradient at one model, over K points each. *Local
steps*: five steps of 16 points from one model. The loop is what a user writes: a module, a loss and
`backward` for each client in turn. Both compute the same, which is checked; they take turns, one
thread each, and the best time of each counts.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from codedfedl.core.client import LocalModel
from codedfedl.core.gradients import Gradient
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.simulation.client_data import Batch, SimulatedClient
from codedfedl.simulation.networks import NetworkJob, answers, summed_gradient

CLIENTS, HELD, STEPS, POINTS, STEP = 30, 96, 5, 16, 0.05


def clients(learner: TorchNetwork) -> list[SimulatedClient]:
    """Return thirty clients with made-up points."""
    rng = np.random.default_rng(0)
    images = rng.random((CLIENTS * HELD, learner.inputs), dtype=np.float32)
    labels = np.eye(learner.outputs, dtype=np.float32)[rng.integers(10, size=len(images))]
    batch = Batch(images, labels, np.arange(0, len(images) + 1, HELD))
    return [SimulatedClient([batch], j, 0, learner=learner) for j in range(CLIENTS)]


def loop(learner: TorchNetwork, start: Any, every: list[SimulatedClient]) -> tuple[Any, Any]:
    """Return the two tasks as plain loops over clients."""
    module = torch.nn.Sequential(
        *(torch.nn.Unflatten(1, (1, 28, 28)), torch.nn.Conv2d(1, 8, 5, stride=2)),
        *(torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, stride=2), torch.nn.ReLU()),
        *(torch.nn.Flatten(), torch.nn.Linear(400, 10)),
    )
    parts = list(module.parameters())
    ends = np.cumsum([0, *learner.tensor_sizes]).tolist()
    data = [tuple(map(torch.from_numpy, client.batch(0))) for client in every]

    def reset() -> None:
        with torch.no_grad():
            for part, (first, end) in zip(parts, pairwise(ends), strict=True):
                part.copy_(torch.from_numpy(start[first:end]).view_as(part))

    def slopes(points: Any, labels: Any, reduction: str) -> list[Any]:
        loss = torch.nn.functional.cross_entropy(module(points), labels, reduction=reduction)
        return list(torch.autograd.grad(loss, parts))

    def gradients(count: int) -> Any:
        reset()
        total = [torch.zeros_like(part) for part in parts]
        for points, labels in data:
            mine = slopes(points[:count], labels[:count], "sum")
            for part, slope in zip(total, mine, strict=True):
                part.add_(slope)
        return torch.cat([part.flatten() for part in total]).numpy()

    def local_steps() -> Any:
        models = []
        for points, labels in data:
            reset()
            for step in range(STEPS):
                rows = slice(POINTS * step, POINTS * (step + 1))
                downhill = slopes(points[rows], labels[rows], "mean")
                with torch.no_grad():
                    for part, slope in zip(parts, downhill, strict=True):
                        part.sub_(STEP * slope)
            models.append(torch.cat([part.detach().flatten() for part in parts]).numpy().copy())
        return np.stack(models)

    return gradients, local_steps


def best(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the best milliseconds of each way, which take turns."""
    seconds = dict.fromkeys(ways, np.inf)
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return {name: 1e3 * value for name, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--points", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    learner = TorchNetwork("cnn", 784, 10)
    start = learner.start(np.random.default_rng(0))
    every = clients(learner)
    plain_gradients, plain_steps = loop(learner, start, every)
    loads = np.full(CLIENTS, options.points)

    def gradients() -> Any:
        return summed_gradient(Gradient(0), start, every.__getitem__, loads)["gradient"]

    def local_steps() -> Any:
        work = InOrder(0, STEPS, STEP, 0.0, points=POINTS)
        made = answers([NetworkJob(work, client, HELD, start) for client in every])
        return np.stack([answer.arrays["model"] / HELD for answer in made])

    np.testing.assert_allclose(gradients(), plain_gradients(options.points), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(local_steps(), plain_steps(), rtol=1e-3, atol=1e-4)
    tasks = {
        "gradients": {"ours": gradients, "loop": lambda: plain_gradients(options.points)},
        "local steps": {"ours": local_steps, "loop": plain_steps},
    }
    print(f"{CLIENTS} clients, ms a round, best of {options.repeats}")
    for task, ways in tasks.items():
        times = best(ways, options.repeats)
        ratio = times["loop"] / times["ours"]
        ours, plain = times["ours"], times["loop"]
        print(f"  {task:12} ours {ours:7.2f}  PyTorch loop {plain:7.2f}  {ratio:5.2f}x")


class InOrder(LocalModel):
    """Local steps over the points in their order, so that the loop can do the same."""

    def stepped_on(self, client: Any, load: int) -> Any:
        """Return no stream to draw an order with."""
        return (*super().stepped_on(client, load)[:2], None)


if __name__ == "__main__":
    main()
