"""Data, dealt to the clients and embedded: what a simulation trains on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from codedfedl._types import IntArray
from codedfedl.arrays import Array, to_device
from codedfedl.core.protocol import Task
from codedfedl.data import Dataset
from codedfedl.fleet.devices import Workload
from codedfedl.learning.features import FeatureMap
from codedfedl.learning.training import Schedule
from codedfedl.simulation.evaluate import Batch

__all__ = ["Parts", "Problem", "embedded", "task_of"]

Parts = Sequence[Sequence[IntArray]]
"""Which points client j has in mini-batch b: ``parts[b][j]``."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Data on a device, ready to be trained on.

    Attributes
    ----------
    test_classes : array of shape (t,) or None
        None for regression, whose metric is R² on `test_targets`.
    """

    batches: Sequence[Batch]
    test_features: Array
    test_targets: Array
    test_classes: Array | None


def embedded(dataset: Dataset, parts: Parts, features: FeatureMap, device: str) -> Problem:
    """Map all points to features, mini-batch after mini-batch, client after client."""

    def embed(inputs: np.ndarray) -> Array:
        return features.transform(to_device(inputs, device))

    batches = []
    for part in parts:
        rows = np.concatenate(part)
        targets = to_device(dataset.targets[rows], device)
        offsets = np.concatenate([[0], np.cumsum([len(held) for held in part])])
        batches.append(Batch(embed(dataset.inputs[rows]), targets, offsets))
    classes = to_device(dataset.test_labels, device) if dataset.is_classification else None
    test_targets = to_device(dataset.test_targets, device)
    return Problem(batches, embed(dataset.test_inputs), test_targets, classes)


def task_of(
    dataset: Dataset,
    parts: Parts,
    features: FeatureMap,
    *,
    epochs: int,
    schedule: Schedule,
    ridge: float,
) -> Task:
    """Return the public facts of training on these data."""
    inputs = dataset.inputs.shape[1]
    return Task(
        workload=Workload(features.size(inputs), dataset.label_columns),
        feature_macs=features.macs(inputs),
        points=np.array([[len(held) for held in part] for part in parts]),
        epochs=epochs,
        schedule=schedule,
        ridge=ridge,
        raw_bits=dataset.bits * inputs + dataset.label_bits,
        largest_square=features.largest_square,
    )
