"""The planned window beside windows of a grid: hours to a training loss, predicted and played.

Run with `python -m benchmarks.windows [--fleet paper …] [--data DIR] [--cores N]`. On each of four
fleets, `paced` trains the CNN on MNIST with the window and the deadline that it plans, and with
those of a grid, all with the same step, to a training loss. Predicted hours are relative to the
best of the grid. It takes some minutes of one core: the loss is that of an accuracy of some 92%,
on 1,000 training points.
"""

import argparse
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.knobs import SEED, Problems
from codedfedl.planning.windows import WindowPlan
from codedfedl.simulation.engine import Simulation

FLEETS: dict[str, tuple[str, dict[str, Any], float]] = {
    "paper": ("paper", {}, 1.0),
    "homogeneous": ("paper", {"fleet.k1": 1.0, "fleet.k2": 1.0}, 0.4),
    "lossy": ("paper", {"fleet.erasure": 0.5, "fleet.k1": 0.9}, 2.0),
    "phones": ("phones", {}, 0.01),
}
"""Fleets by name: the built-in one, what differs from it, and the hours that are played."""
WINDOWS = (0.5, 1.0, 2.0, 4.0, 8.0)  # times the mean time of a link
WAITS = (1.0, 2.0)  # for links after the window, times their mean time
LOSS = 0.25
MEASURES = 150  # of the loss, evenly in the logarithm of the time
SAMPLE = slice(None, None, 60)

problems: dict[str, Problems] = {}


def played(job: tuple[str, dict[str, Any], float]) -> tuple[float, float, WindowPlan]:
    """Return the hours to the loss, the first window, and the last plan."""
    import torch

    torch.set_num_threads(1)
    fleet, table, hours = job
    known = problems[fleet]
    run = Simulation(known.problem, known.contenders(table, hours), SEED)
    run.measuring.add = lambda settings: None  # type: ignore[method-assign]
    run.measuring.complete = lambda settings: None  # type: ignore[method-assign]
    (setting,), batch = run.settings, known.problem.batches[0]
    features, targets = batch.features[SAMPLE], batch.targets[SAMPLE]
    last, reached, first = 0.0, np.inf, 0.0
    for _ in run.run():
        now, plan = setting.timeline.now / 3600, getattr(setting.state, "plan", None)
        first = first or (plan.window if plan is not None else 0.0)
        if now > last * (1 + np.log(1000) / MEASURES):
            last, learner = now, setting.state.task.learner
            loss = learner.loss(setting.state.model, features, targets) / len(targets)
            if loss < LOSS:
                reached = now
                break
    state: Any = setting.state
    return reached, first, state.plan


def links(known: Problems) -> float:
    """Return the mean time of a client's link, in seconds."""
    (contender,) = known.contenders({"name": "paced"}, 1.0)
    return float(np.median(contender.fleet.mean(np.zeros(contender.task.clients))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", nargs="*", choices=list(FLEETS), default=list(FLEETS))
    parser.add_argument("--data")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    jobs: list[tuple[str, dict[str, Any], float]] = []
    for name in options.fleet:
        base, changes, hours = FLEETS[name]
        problems[name] = Problems("mnist", base, options.data, changes)
        link, common = links(problems[name]), {"name": "paced", "server_step": 0.004}
        jobs.append((name, common, hours))
        for window, wait in product(WINDOWS, WAITS):
            seconds = {"window": window * link, "deadline": (window + wait) * link}
            jobs.append((name, common | seconds | {"replan": False}, hours))
    with get_context("fork").Pool(options.cores) as pool:
        outcomes = pool.map(played, jobs, chunksize=1)
    for name in options.fleet:
        mine = [outcome for job, outcome in zip(jobs, outcomes, strict=True) if job[0] == name]
        (_, _, planned), grid = mine[0], mine[1:]
        noise = planned.noise_scale  # of the end: what the run measured
        costs = [plan._replace(noise_scale=noise).cost for _, _, plan in mine]
        best, cheapest = min(hours for hours, _, _ in grid), min(costs[1:])
        print(f"\n{name}: hours to a training loss of {LOSS}, and what the plan predicts")
        print("   window, s  deadline, s   hours  of the best  predicted, of the best")
        for (hours, first, plan), cost in zip(mine, costs, strict=True):
            words = f"  planned, at first {first:.3g} s" if plan is planned else ""
            print(
                f"  {plan.window:10.3g} {plan.deadline:12.3g} {hours:7.3g} {hours / best:12.2f} "
                f"{cost / cheapest:23.2f}{words}"
            )


if __name__ == "__main__":
    main()
