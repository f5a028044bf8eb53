"""The exact test accuracy of many models after every round, from a few of the points.

The label of a point x cannot change from a to b before the columns of the model have moved apart by
its margin: |x·(Δβ_a − Δβ_b)| ≤ ‖x‖·‖Δβ_a − Δβ_b‖. So all points are scored once in a while, and in
between only those *near* a border; the labels of all others are known. `learning.training.accuracy`
of all predictions is the naive twin. What is closer than float32 can tell is decided in float64, so
that the accuracy depends on the model alone, and not on when all points were scored last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import is_numpy_array

from codedfedl._types import FloatArray, IntArray, Mask
from codedfedl.simulation.evaluate import stacked_predictions
from codedfedl.simulation.problem import Problem

__all__ = ["Scores"]

_NEAR = 1 / 4  # share of the points that are near at first
_MOST, _GROWTH = 1 / 2, 1.5
_FULL = 2.0  # what it costs to score all points and sort them out; a plain score costs 1
_LEAST = 1 << 20  # numbers: fewer are scored in no time
_CHUNK = 1024  # points whose predictions are in the cache at one time
_ROUNDING = 1e-5  # of ‖x‖·‖β‖: more than a float32 product is off

Matrix = npt.NDArray[np.floating]


@dataclass(eq=False)
class _Known:
    """What is known of one setting since all points were scored.

    Attributes
    ----------
    right
        Number of correctly labelled points among those that are not near.
    reach : array of shape (c, c)
        How far the columns a and b may move apart before one of those could turn from a to b.
    lasted
        Whether the near points have sufficed since.
    """

    model: Matrix
    right: int
    reach: FloatArray
    lasted: bool = False

    def holds(self, model: Matrix) -> bool:
        """Whether only labels of near points can have changed."""
        moved = _apart(model - self.model) + _ROUNDING * _length(model)
        return bool((moved < self.reach).all())


class Scores:
    """The test points, and what is known of each setting.

    Parameters
    ----------
    features : array of shape (points, q)
    classes : array of shape (points,)
    """

    @classmethod
    def of(cls, problem: Problem) -> "Scores | None":
        """Return the scores if they pay off: for classes, on a CPU, and with enough points."""
        features, classes = problem.test_features, problem.test_classes
        if classes is None or not is_numpy_array(features) or features.size < _LEAST:
            return None
        return cls(features, np.asarray(classes))

    def __init__(self, features: Matrix, classes: IntArray) -> None:
        self.features, self.classes = features, classes
        norms = np.sqrt(np.einsum("pq,pq->p", features, features))
        self.norms = np.maximum(norms, np.float32(1e-30))
        self.full = 0
        """How many times all points were scored, over all settings."""
        self._known: dict[str, _Known] = {}
        self._share, self._spent = _NEAR, 0.0
        self._near: IntArray = np.arange(0)
        self._near_features = features[:0]

    def accuracies(self, models: Mapping[str, Matrix]) -> list[float]:
        """Return the accuracy of each setting's model, in the order given."""
        known = self._known
        stale = [key for key in models if key not in known or not known[key].holds(models[key])]
        if any(key not in known or known[key].lasted for key in stale):
            stale = list(models)  # one who is always restless does not disturb the others
        right: dict[str, int] = {}
        if stale:
            some = {key: models[key] for key in stale}
            right = self._score_all(some, choose=len(some) == len(models))
        calm = [key for key in models if key not in right]
        if calm:
            self._spent += self._share
            predictions = stacked_predictions(self._near_features, [models[key] for key in calm])
            labels = self._labels(predictions, self._near, [models[key] for key in calm])
            counts = (labels == self.classes[self._near, None]).sum(axis=0)
            for key, count in zip(calm, counts.tolist(), strict=True):
                right[key] = known[key].right + count
                known[key].lasted = True
        return [float(np.float32(right[key]) / np.float32(len(self.classes))) for key in models]

    def _score_all(self, models: Mapping[str, Matrix], *, choose: bool) -> dict[str, int]:
        """Score every point, and choose anew which points are near."""
        every, points = list(models.values()), len(self.classes)
        self.full += len(every)
        labels = np.empty((points, len(every)), dtype=np.int64)
        margins = np.empty((points, len(every), every[0].shape[1]), dtype=np.float32)
        for begin in range(0, points, _CHUNK):
            rows = slice(begin, begin + _CHUNK)
            predictions = stacked_predictions(self.features[rows], every)
            labels[rows] = self._labels(predictions, np.arange(points)[rows], every)
            chosen = labels[rows, :, None]
            margin = np.take_along_axis(predictions, chosen, axis=2) - predictions
            margin /= self.norms[rows, None, None]
            np.put_along_axis(margin, chosen, np.inf, axis=2)
            margins[rows] = margin
        if choose:
            self._choose(margins.reshape(points, -1).min(axis=1))
        right = labels == self.classes[:, None]
        total = right.sum(axis=0)
        far = total - right[self._near].sum(axis=0)
        margins[self._near] = np.inf
        for place, (key, model) in enumerate(models.items()):
            reach = _least(margins[:, place], labels[:, place])
            self._known[key] = _Known(model, int(far[place]), reach)
        return dict(zip(models, total.tolist(), strict=True))

    def _choose(self, closest: FloatArray) -> None:
        """Call the closest points near: so many that scoring them costs what scoring all does."""
        if len(self._near):
            grow = self._spent < _FULL
            self._share = min(_MOST, self._share * _GROWTH) if grow else self._share / _GROWTH
        self._spent, count = 0.0, max(1, int(self._share * len(closest)))
        self._near = np.sort(np.argpartition(closest, count)[:count])
        self._near_features = self.features[self._near]

    def _labels(
        self, predictions: Matrix, points: IntArray, models: Sequence[Matrix]
    ) -> npt.NDArray[np.int64]:
        """Return the largest prediction's column, shape (points, models)."""
        labels: npt.NDArray[np.int64] = predictions.argmax(axis=2)
        lengths = np.array([_length(model) for model in models])
        doubt = _ROUNDING * self.norms[points, None] * lengths
        top = predictions.max(axis=2)
        tied: Mask = (predictions >= (top - doubt)[:, :, None]).sum(axis=2) > 1
        for place, s in zip(*np.nonzero(tied), strict=True):
            exact = self.features[points[place]].astype(np.float64) @ models[s].astype(np.float64)
            labels[place, s] = exact.argmax()
        return labels


def _apart(moved: Matrix) -> FloatArray:
    """Return how far each two columns have moved apart, shape (c, c)."""
    gram = (moved.T @ moved).astype(np.float64)
    squares = np.diag(gram)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0.0))


def _length(model: Matrix) -> float:
    """Return the norm of the longest column, doubled: two columns are compared."""
    return 2 * float(np.sqrt(np.einsum("qc,qc->c", model, model).max()))


def _least(margins: Matrix, labels: IntArray) -> FloatArray:
    """Return the least margin from each label to each other, shape (c, c)."""
    order = np.argsort(labels, kind="stable")
    found, begins = np.unique(labels[order], return_index=True)
    reach = np.full((margins.shape[1],) * 2, np.inf)
    reach[found] = np.minimum.reduceat(margins[order], begins, axis=0)
    return reach
