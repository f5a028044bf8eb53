"""Data, dealt to the clients and embedded: what a simulation trains on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, FloatArray, IntArray, to_device
from codedfedl.core.protocol import Task
from codedfedl.data import Dataset
from codedfedl.fleet.devices import Workload
from codedfedl.learning.features import Encoder, FeatureMap, Identity
from codedfedl.learning.optimisers import Schedule
from codedfedl.simulation.evaluate import Batch
from codedfedl.simulation.streamed import Streamed, too_large

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
    target_mean : array of shape (c,)
        Subtracted from all targets, and added to predictions; 0 for classes.
    """

    batches: Sequence[Batch]
    test_features: Array
    test_targets: Array
    test_classes: Array | None
    target_mean: FloatArray


def embedded(
    dataset: Dataset,
    parts: Parts,
    features: FeatureMap,
    device: str,
    *,
    streamed: bool | None = None,
) -> Problem:
    """Map all points to features, mini-batch after mini-batch, client after client.

    With `streamed`, the training points are mapped when they are needed, again and again; by
    default where their features would take more than half of the memory.

    The targets of a regression are centred by their mean over all training points, which clients
    could agree on by one sum: the model has no intercept, and gradient descent would spend its
    rounds on the mean.
    """
    mean = _target_mean(dataset, parts)
    if streamed is None:
        streamed = _is_streamed(dataset, features, device)
    embed: Callable[[IntArray], Any] = (
        partial(Streamed, features, dataset.inputs)
        if streamed
        else _mapping(features, dataset.inputs, device)
    )
    batches = []
    for part in parts:
        rows = np.concatenate(part)
        targets = (
            dataset.targets_of(rows)
            if dataset.is_classification
            else _centred(dataset.labels[rows], mean)
        )
        offsets = np.concatenate([[0], np.cumsum([len(held) for held in part])])
        batches.append(Batch(embed(rows), to_device(targets, device), offsets))
    test_features = _mapping(features, dataset.test_inputs, device)(slice(None))
    if dataset.is_classification:
        classes = to_device(dataset.test_labels, device)
        return Problem(
            batches, test_features, to_device(dataset.test_targets, device), classes, mean
        )
    test_targets = to_device(_centred(dataset.test_labels, mean), device)
    return Problem(batches, test_features, test_targets, None, mean)


def _mapping(
    features: FeatureMap, inputs: npt.NDArray[Any], device: str
) -> Callable[[IntArray | slice], Array]:
    """Return a function from rows to their features; an encoder is run once, on all points."""
    if isinstance(features, Encoder):
        encoded = features.remembered(inputs)
        return lambda rows: to_device(encoded[rows], device)
    return lambda rows: features.transform(to_device(inputs[rows], device))


def _is_streamed(dataset: Dataset, features: FeatureMap, device: str) -> bool:
    """Whether features do not fit in memory; an encoder's are computed once, and kept."""
    points, inputs = dataset.inputs.shape
    computed = device == "cpu" and not isinstance(features, Encoder | Identity)
    return computed and too_large(points, features.size(inputs))


def _target_mean(dataset: Dataset, parts: Parts) -> FloatArray:
    """Return the mean of every target over the points that are trained on; 0 for classes."""
    if dataset.is_classification:
        return np.zeros(dataset.label_columns)
    rows = np.concatenate([held for part in parts for held in part])
    return np.asarray(dataset.labels[rows].reshape(len(rows), -1).mean(axis=0))


def _centred(labels: npt.NDArray[Any], mean: FloatArray) -> npt.NDArray[np.float32]:
    """Return the labels of a regression as columns, centred before digits are dropped."""
    return np.asarray(labels.reshape(len(labels), -1) - mean, dtype=np.float32)


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
        raw_bits=dataset.input_bits + dataset.label_bits,
        largest_square=features.largest_square,
    )
