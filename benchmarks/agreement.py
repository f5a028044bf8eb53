"""Do a processor and a GPU train the same models? `python -m benchmarks.agreement cuda cupy`.

Ten epochs of Table 1's settings on MNIST, from the same seed; CODEDFEDL_DATA names its folder.
"""

import sys

import numpy as np

from codedfedl.arrays import FloatArray, to_host
from codedfedl.data import load_dataset
from codedfedl.experiments import built_in
from codedfedl.learning.features import RandomFourier
from codedfedl.simulation.engine import Simulation, entries
from codedfedl.simulation.units import prepare


def trained(device: str) -> list[FloatArray]:
    """Return the models, and print their test accuracies."""
    experiment = built_in("table1-mnist", {"training.epochs": 10})
    problem, task, fleet = prepare(experiment, load_dataset("mnist"), 0, RandomFourier(), device)
    simulation = Simulation(problem, entries(task, fleet, experiment.build_schemes()), 0)
    for _ in simulation.run():
        pass
    accuracies = [f"{float(setting.records[-1].metric):.4f}" for setting in simulation.settings]
    print(f"{device:6} test accuracies {' '.join(accuracies)}")
    return [to_host(setting.state.model) for setting in simulation.settings]


def main(devices: list[str]) -> None:
    reference = trained("cpu")
    for device in devices:
        pairs = zip(reference, trained(device), strict=True)
        apart = max(float(np.abs(one - other).max() / np.abs(one).max()) for one, other in pairs)
        print(
            f"{device:6} largest difference of a model, relative to its largest entry: {apart:.1e}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
