"""The clients' data on one device: dealt, embedded, and ready to be trained on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, FloatArray, IntArray, to_device
from codedfedl.core.task import Task, workload_of
from codedfedl.core.work import Points
from codedfedl.data import Dataset
from codedfedl.data.dataset import targets_of
from codedfedl.io.files import memory
from codedfedl.learning.features import Encoder, FeatureMap, Identity
from codedfedl.learning.learner import Learner, LeastSquares
from codedfedl.learning.least_squares import Quadratic
from codedfedl.learning.optimisers import Schedule
from codedfedl.random import stream

STREAMED_POINTS = 8192  # Streamed features exist for about so many points at a time.
MAX_MEMORY_SHARE = 0.5  # Features that would take more of the memory are streamed.

Parts = Sequence[Sequence[IntArray]]
"""Which points client j has in mini-batch b: ``parts[b][j]``."""


class Streamed:
    """The features of a mini-batch, computed whenever rows are asked for: none is kept.

    Every use costs the embedding again: schemes in which each client works on few points, or once,
    pay little for it. Structured features take as long in small pieces as in large ones; random
    Fourier features draw their frequencies for every piece.

    Parameters
    ----------
    inputs : array of shape (n, d)
        The raw points of all clients, or anything that returns arrays for rows.
    points : array of shape (m,)
        Which of them, in the order of the mini-batch.
    """

    def __init__(self, features: FeatureMap, inputs: npt.NDArray[Any], points: IntArray) -> None:
        self._map, self._inputs, self._points = features, inputs, points
        self.shape = (len(points), features.size(inputs.shape[1]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | IntArray) -> npt.NDArray[Any]:
        """Return the features of the rows."""
        return np.asarray(self._map.transform(self._inputs[self._points[rows]]))


@dataclass(frozen=True, eq=False)
class Batch:
    """A mini-batch: every client's features and targets, one client after the other.

    Attributes
    ----------
    features : array of shape (m, q), or `Streamed`
    targets : array of shape (m, c)
    offsets : array of shape (n + 1,)
        Client j has the rows ``offsets[j]:offsets[j + 1]``, in the random order in which it
        processes them.
    """

    features: Array
    targets: Array
    offsets: IntArray

    def client(self, j: int, first: int = 0, end: int | None = None) -> Points:
        """Return rows of client j, in its own order: all, or those from `first` to `end`."""
        start, stop = int(self.offsets[j]), int(self.offsets[j + 1])
        rows = slice(start + first, stop if end is None else start + end)
        return self.features[rows], self.targets[rows]

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def held(self) -> IntArray:
        """Points of each client, shape (n,)."""
        return np.diff(self.offsets)

    def parts(self) -> Iterator[Points]:
        """Yield all its points: at once, or part after part where their features are streamed."""
        size = STREAMED_POINTS if isinstance(self.features, Streamed) else len(self.targets)
        for start in range(0, len(self.targets), size):
            rows = slice(start, start + size)
            yield self.features[rows], self.targets[rows]

    def groups(self) -> Iterator[slice]:
        """Yield clients in groups: one of all, or of few points where features are streamed."""
        points = STREAMED_POINTS if isinstance(self.features, Streamed) else len(self.targets)
        first = 0
        while first < self.clients:
            end = int(np.searchsorted(self.offsets, self.offsets[first] + points, side="right")) - 1
            last = max(first + 1, end)
            yield slice(first, last)
            first = last

    @cached_property
    def everything(self) -> Quadratic:
        """The quadratic of all its points."""
        return reduce(add, (Quadratic.of(*part) for part in self.parts()))


@dataclass(frozen=True, eq=False)
class SimulatedClient:
    """Client j, whose points lie among those of all; by default, least squares are trained."""

    data: Sequence[Batch]
    client: int
    seed: int
    learner: Learner = field(default=None, kw_only=True)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not self.learner:
            linear = LeastSquares(self.data[0].features.shape[1], self.data[0].targets.shape[1])
            object.__setattr__(self, "learner", linear)

    @property
    def points(self) -> int:
        """Number of points that it holds."""
        return sum(int(batch.held[self.client]) for batch in self.data)

    @property
    def batches(self) -> int:
        """Mini-batches."""
        return len(self.data)

    def batch(self, b: int) -> Points:
        """Return the points of a mini-batch."""
        return self.data[b].client(self.client)

    def first(self, count: int) -> Iterator[Points]:
        """Yield the first points in its own order, mini-batch after mini-batch."""
        for batch in self.data:
            size = min(count, int(batch.held[self.client]))
            if size > 0:
                yield batch.client(self.client, 0, size)
            count -= size

    def peer(self, j: int) -> "SimulatedClient":
        """Return another client, for schemes in which clients hold shares of one another's data."""
        return SimulatedClient(self.data, j, self.seed, learner=self.learner)

    def code_stream(self, first: int, *rest: int) -> np.random.Generator:
        """Return the stream of one of its codes."""
        return stream(self.seed, "code", first, self.client, *rest)


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
    mean = np.zeros(dataset.label_columns)
    if not dataset.is_classification:
        rows = np.concatenate([held for part in parts for held in part])
        mean = np.asarray(dataset.labels[rows].reshape(len(rows), -1).mean(axis=0))
    if streamed is None:
        computed = device == "cpu" and not isinstance(features, Encoder | Identity)  # not looked up
        points, inputs = dataset.inputs.shape
        streamed = computed and too_large(points, features.size(inputs))
    embed: Callable[[IntArray], Any] = (
        partial(Streamed, features, dataset.inputs)
        if streamed
        else _mapping(features, dataset.inputs, device)
    )

    def targets(labels: npt.NDArray[Any]) -> Array:
        centred = labels
        if not dataset.is_classification:  # before digits are dropped
            centred = labels.reshape(len(labels), -1) - mean
        return to_device(targets_of(centred, dataset.classes), device)

    batches = [
        Batch(embed(rows), targets(dataset.labels[rows]), np.cumsum([0, *map(len, part)]))
        for part in parts
        for rows in [np.concatenate(part)]
    ]
    return Problem(
        batches,
        _mapping(features, dataset.test_inputs, device)(slice(None)),
        targets(dataset.test_labels),
        to_device(dataset.test_labels, device) if dataset.is_classification else None,
        mean,
    )


class Problems:
    """What settings train on: the points as they were embedded, or under a map made in a run."""

    def __init__(self, problem: Problem) -> None:
        self._known: dict[FeatureMap | None, Problem] = {None: problem}

    def of(self, task: Task) -> Problem:
        """Return the data of a task."""
        features = task.features
        if features is not None and features not in self._known:
            self._known[features] = remapped(self._known[None], features)
        return self._known[features]


def remapped(problem: Problem, features: FeatureMap) -> Problem:
    """Map the points of a problem once more."""

    def embed(points: Array) -> Any:
        if isinstance(points, Streamed) or too_large(len(points), features.size(points.shape[1])):
            return Streamed(features, points, np.arange(len(points)))
        return features.transform(points)

    batches = [replace(batch, features=embed(batch.features)) for batch in problem.batches]
    tested = features.transform(problem.test_features)
    return replace(problem, batches=batches, test_features=tested)


def _mapping(
    features: FeatureMap, inputs: npt.NDArray[Any], device: str
) -> Callable[[IntArray | slice], Array]:
    """Return a function from rows to their features; an encoder is run once, on all points."""
    if isinstance(features, Encoder):
        encoded = features.remembered(inputs)
        return lambda rows: to_device(encoded[rows], device)
    return lambda rows: features.transform(to_device(inputs[rows], device))


def too_large(points: int, features: int) -> bool:
    """Whether the features of so many points take too much of this machine's memory."""
    return 4.0 * points * features > MAX_MEMORY_SHARE * memory()


def task_of(
    dataset: Dataset,
    parts: Parts,
    features: FeatureMap,
    *,
    epochs: int,
    schedule: Schedule,
    ridge: float,
    learner: Learner | None = None,
) -> Task:
    """Return the public facts of training on these data: least squares by default."""
    inputs = dataset.inputs.shape[1]
    trained = learner or LeastSquares(features.size(inputs), dataset.label_columns)
    return Task(
        workload=workload_of(trained, features.size(inputs), dataset.label_columns),
        feature_macs=features.macs(inputs),
        points=np.array([[len(held) for held in part] for part in parts]),
        epochs=epochs,
        schedule=schedule,
        ridge=ridge,
        raw_bits=dataset.input_bits + dataset.label_bits,
        largest_square=features.largest_square,
        learner=trained,
    )
