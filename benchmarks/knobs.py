"""The knobs of `reproduce deep`: chosen for each scheme on the training loss, by halving.

Run with `python -m benchmarks.knobs --dataset mnist --fleet paper [--out FILE] [--cores N]`. All
candidates of a scheme are played for a while on seed 100, the third with the lowest loss on the
training points for twice as long, and so on, until one is left. No test point is looked at. The
chosen [[schemes]] tables are printed; they are stored in the experiment `deep-DATASET-FLEET`.
"""

import argparse
import json
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from codedfedl.experiments import built_in
from codedfedl.reproduce.deep import FLEETS, TARGETS
from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.simulation.engine import Contender, Simulation
from codedfedl.simulation.units import datasets, units

Table = dict[str, Any]
Knobs = dict[str, list[Any]]

SEED = 100
HOURS = {"paper": 0.2, "phones": 0.0015}  # of the first turn
LOADS = {"paper": [1, 4], "phones": [4, 32]}
WINDOWS = {"paper": [4.0, 8.0, 16.0], "phones": [0.03, 0.1, 0.3]}
SAMPLE = slice(None, None, 6)
"""The training points that the loss is taken over: what is left of them is like the whole."""


def candidates(fleet: str) -> list[tuple[Table, Knobs]]:
    """Return every scheme's fixed settings, and the knobs that are tried."""
    adam, steps = {"optimiser": "adam"}, [0.004, 0.012, 0.03]
    equal: Knobs = {"load": LOADS[fleet], "server_step": steps}
    ours: Knobs = {"server_step": [0.006, 0.012, 0.024]}
    drops: Knobs = {"drop": [0.1, 0.3]}
    local: Knobs = {"local_steps": [2, 8], "points": [1, 4], "step": [0.1, 0.3], "drop": [0.2]}
    adaptive = local | {"server_step": [0.01, 0.03], "step": [0.05]}
    nova = local | {"local_steps": [1], "most_steps": [10, 50]}
    timely: Knobs = {"points": [1, 4], "most_steps": [10], "step": [0.1, 0.3], "drop": [0.3, 0.6]}
    windows: Knobs = {"window": WINDOWS[fleet], "weights": ["client"], "server_step": steps}
    return [
        ({"name": "paced", "least": 1, "message_bits": 32}, ours),
        ({"name": "paced", "least": 1, "message_bits": 8}, ours),
        ({"name": "paced", "least": 10, "message_bits": 32}, ours),
        ({"name": "paced", "least": 10, "message_bits": 8}, ours),
        ({"name": "anytime"}, windows),
        ({"name": "uncoded"} | adam, equal),
        ({"name": "greedy"} | adam, equal | drops),
        ({"name": "tifl"} | adam, equal),
        ({"name": "mifa"} | adam, equal | {"drop": [0.3]}),
        ({"name": "dsag"} | adam, equal | {"drop": [0.3]}),
        ({"name": "fedbuff", "buffer": 10} | adam, equal),
        ({"name": "ringleader"} | adam, equal),
        ({"name": "malenia", "enough": 1.0} | adam, equal),
        ({"name": "fedavg"}, local),
        ({"name": "fednova"}, nova),
        ({"name": "fedcompass"}, nova),
        ({"name": "fedprox", "proximal": 0.01}, local),
        ({"name": "fedadam"}, adaptive),
        ({"name": "fedyogi"}, adaptive),
        ({"name": "fedau"}, local),
        ({"name": "timelyfl"}, timely),
    ]


def expanded(fixed: Table, knobs: Knobs) -> list[Table]:
    """Return every combination of some knobs."""
    return [fixed | dict(zip(knobs, point, strict=True)) for point in product(*knobs.values())]


class Problems:
    """The data of a case, in memory once for all processes."""

    def __init__(
        self, dataset: str, fleet: str, data: str | None, changes: Table | None = None
    ) -> None:
        seeds = {"seeds": [SEED]} | (changes or {})
        self.experiment = built_in(f"deep-{dataset}-{fleet}", seeds)
        first = cells(self.experiment)[:1]
        self.loaded = datasets(first, data)
        (unit,) = units(first, [SEED], self.loaded)
        self.problem = unit.problem()

    def contenders(self, table: Table, hours: float) -> list[Contender]:
        """Return a setting that ends after some hours."""
        made = self.experiment.model_dump(exclude_none=True)
        made["training"] |= {"hours": hours}
        experiment = Experiment.model_validate(made | {"schemes": [table]})
        (unit,) = units(cells(experiment), [SEED], self.loaded)
        return unit.contenders()

    def loss(self, table: Table, hours: float) -> float:
        """Return a setting's mean loss on the training points after some hours."""
        run = Simulation(self.problem, self.contenders(table, hours), SEED)
        run.measuring.add = lambda settings: None  # type: ignore[method-assign]
        run.measuring.complete = lambda settings: None  # type: ignore[method-assign]
        for _ in run.run():
            pass
        state, batch = run.settings[0].state, self.problem.batches[0]
        features, targets = batch.features[SAMPLE], batch.targets[SAMPLE]
        loss = state.task.learner.loss(state.model, features, targets)
        return float(np.nan_to_num(loss / len(targets), nan=np.inf))


problems: Problems | None = None


def played(job: tuple[Table, float]) -> float:
    import torch

    torch.set_num_threads(1)
    assert problems is not None
    try:
        return problems.loss(*job)
    except Exception as error:  # a setting that cannot be played loses
        print(f"{job}: {error}", flush=True)
        return float("inf")


def main() -> None:
    global problems  # noqa: PLW0603  # forked processes share it
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=list(TARGETS), default="mnist")
    parser.add_argument("--fleet", choices=FLEETS, default="paper")
    parser.add_argument("--scheme", nargs="*")
    parser.add_argument("--data")
    parser.add_argument("--out")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    groups = [
        expanded(fixed, knobs)
        for fixed, knobs in candidates(options.fleet)
        if not options.scheme or fixed["name"] in options.scheme
    ]
    problems = Problems(options.dataset, options.fleet, options.data)
    hours, log = HOURS[options.fleet], []
    with get_context("fork").Pool(options.cores) as pool:
        while any(len(group) > 1 for group in groups):
            jobs = [(table, hours) for group in groups if len(group) > 1 for table in group]
            losses = iter(pool.map(played, jobs, chunksize=1))
            for k, group in enumerate(groups):
                if len(group) > 1:
                    ranked = sorted(((next(losses), t) for t in group), key=lambda pair: pair[0])
                    log += [{"hours": hours, "loss": loss} | table for loss, table in ranked]
                    groups[k] = [table for _, table in ranked[: (len(group) + 1) // 3 or 1]]
            hours *= 2
            print(f"{hours:g} h: {sum(map(len, groups))} settings left", flush=True)
            if options.out:
                chosen = {"chosen": [group[0] for group in groups], "log": log}
                Path(options.out).write_text(json.dumps(chosen))
    for group in groups:
        print("\n[[schemes]]")
        print("\n".join(f"{key} = {json.dumps(value)}" for key, value in group[0].items()))


if __name__ == "__main__":
    main()
