"""A data set dealt to the nodes of a federation on one machine: a file for each."""

from pathlib import Path

import numpy as np

from codedfedl.data import Dataset
from codedfedl.io.files import make_folder
from codedfedl.runs.config import Experiment

__all__ = ["node_name", "write_shards"]


def write_shards(experiment: Experiment, dataset: Dataset, folder: Path) -> list[Path]:
    """Deal a data set to the clients, and write each its own file, and the test points another."""
    assert experiment.federation is not None
    clients, seed = experiment.federation.clients, experiment.seeds[0]
    shards = experiment.deal(dataset.labels, clients, seed)
    paths = []
    for j, rows in enumerate(shards):
        make_folder(folder)
        paths.append(folder / f"{node_name(j)}.npz")
        np.savez(paths[-1], inputs=dataset.inputs[rows], labels=dataset.labels[rows])
    np.savez(folder / "test.npz", inputs=dataset.test_inputs, labels=dataset.test_labels)
    return paths


def node_name(j: int) -> str:
    """Return the name of client j, in the order of the clients."""
    return f"node-{j:03d}"
