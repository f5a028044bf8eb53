"""A plan for charged hours beside the best parity rows and deadline of a grid.

`python -m benchmarks.hours` needs MNIST and takes some minutes a fleet. For each fleet, `coded`
with a sparse code and Nesterov's steps is simulated to 94.2% on structured features, planned for
hours and on a grid of redundancies and deadlines. Names of fleets do a part:
`python -m benchmarks.hours paper k1=0.9`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from codedfedl.experiments import built_in
from codedfedl.fleet.built_in import paper_devices
from codedfedl.fleet.devices import Workload
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.sections import SchemeConfig
from codedfedl.simulation.experiment import simulate

FLEETS: dict[str, dict[str, float]] = {
    "paper": {},
    "k1=0.9": {"k1": 0.9},
    "k2=0.9,erasure=0.4": {"k2": 0.9, "erasure": 0.4},
    "alpha=0.5": {"alpha": 0.5},
    "k1=1,k2=0.7": {"k1": 1.0, "k2": 0.7},
}
"""The paper's, on which the planner was made, and four others."""

_REDUNDANCIES = (0.01, 0.02, 0.05, 0.1)
_SHARES = (0.01, 0.03, 0.1, 0.3)  # of the slowest client's mean round
_COMMON = {"name": "coded", "code": "sparse", "optimiser": "nesterov"}


def main(names: Sequence[str]) -> None:
    """Print a line per fleet, the best of the grid beside the plan."""
    print(f"{'fleet':20} {'grid, h':>9} {'plan, h':>9} {'ratio':>6} {'predicted, h':>13}")
    for name in names or FLEETS:
        hours = _hours(FLEETS[name])
        grid = min(hours[1:], key=lambda one: one[0])
        (found, predicted), ratio = hours[0], hours[0][0] / grid[0]
        print(f"{name:20} {grid[0]:9.3g} {found:9.3g} {ratio:6.2f} {predicted:13.3g}", flush=True)


def _hours(fleet: dict[str, float]) -> list[tuple[float, float]]:
    """Return hours found and predicted of the plan, then of every place of the grid."""
    devices = paper_devices(**fleet)  # type: ignore[arg-type]
    clients = devices.fleet(Workload(2000, 10), 400)
    longest = float(clients.mean(clients.points).max())
    grid = [
        {"redundancy": u, "deadline": share * longest, "nonzeros": max(1, round(10 * u * 30))}
        for u in _REDUNDANCIES
        for share in _SHARES
    ]
    schemes: list[dict[str, Any]] = [{"planned": "hours"}, *grid]
    experiment = built_in("frontier", {"seeds": [0]} | {f"fleet.{k}": v for k, v in fleet.items()})
    configs = [SchemeConfig.model_validate(_COMMON | one) for one in schemes]
    experiment = experiment.model_copy(update={"schemes": configs})
    with TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run")
        simulate(experiment, directory)
        return [
            (
                np.inf if (h := one.total_hours[0]) is None else h,
                one.seeds[0].facts.get("planned_hours", np.nan),
            )
            for one in outcomes(directory)
        ]


if __name__ == "__main__":
    main(sys.argv[1:])
