"""A grid that shares its data against a run for every fleet: `python -m benchmarks.grid`."""

import tempfile
import time
from pathlib import Path

from codedfedl.experiments import built_in
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.simulation.experiment import simulate

ERASURES = [0.05, 0.1, 0.2, 0.4]
REDUNDANCIES = [0.05, 0.1, 0.2]


def gridded(erasures: list[float]) -> Experiment:
    """Return the experiment of Table 1 on MNIST, shorter, over fleets and redundancies."""
    changes = {
        "training.epochs": 20,
        "schemes": [{"name": "uncoded"}, {"name": "coded", "code": "sparse", "nonzeros": 32}],
        "seeds": [0],
    }
    document = built_in("table1-mnist", changes).model_dump(exclude_none=True)
    document["grid"] = {"redundancy": REDUNDANCIES, "fleet.erasure": erasures}
    return check(document, "the grid")


def seconds(experiments: list[Experiment]) -> float:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for place, experiment in enumerate(experiments):
            simulate(experiment, RunDirectory(Path(folder) / str(place)))
    return time.perf_counter() - begin


def main() -> None:
    together = seconds([gridded(ERASURES)])
    apart = seconds([gridded([erasure]) for erasure in ERASURES])
    settings = len(ERASURES) * (1 + len(REDUNDANCIES))
    print(f"{settings} settings, {len(ERASURES)} fleets, 100 rounds on MNIST")
    print(
        f"  one grid {together:.1f} s, a run for every fleet {apart:.1f} s: {apart / together:.2f}"
    )


if __name__ == "__main__":
    main()
