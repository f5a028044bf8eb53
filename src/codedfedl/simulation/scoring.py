"""The exact test accuracy after every round, from a few of the points.

Over some rounds a model moves almost along a line. The *lead* of a point's class over another,
x·(β_y − β_k)/‖x‖, is then almost a line too: between two rounds at which it is known, it lies
between its two values, give or take how far the columns y and k of the model stray from the line.
So all points are scored at the first and the last of some rounds, which decides most of them for
all rounds between; the others are scored in the middle, and so on. `learning.metrics.accuracy` of
all predictions is the naive twin. What is closer than float32 can tell is decided in float64, so
that the accuracy depends on the model alone, and not on which rounds are scored together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import is_numpy_array

from codedfedl.arrays import IntArray, Mask
from codedfedl.simulation.problem import Problem

__all__ = ["Scores"]

_LEAST = 1 << 20  # numbers: fewer are scored in no time
_CHUNK = 2048  # points whose predictions are in the cache at one time
_MUCH = 1 / 2  # share of all predictions: a path that needed more bends too much
_COPY = 4  # models with which a point can be scored in the time that it takes to copy it
_FEW = 1 / 8  # of all points: so many are scored in every round rather than sorted out further
_ROUNDING = 1e-5  # of ‖x‖·‖β‖: more than a float32 product is off

Matrix = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Scored:
    """A model on some points.

    Attributes
    ----------
    right : array of shape (points,)
        Whether the largest prediction is that of the point's class.
    leads : array of shape (c, points)
        Of the point's class over each, relative to ‖x‖; ∞ over itself.
    """

    model: Matrix
    right: Mask
    leads: Matrix

    @classmethod
    def joined(cls, parts: Sequence["_Scored"]) -> "_Scored":
        """Return the same model on all these points."""
        right = np.concatenate([one.right for one in parts])
        return cls(parts[0].model, right, np.concatenate([one.leads for one in parts], axis=1))

    def __getitem__(self, points: IntArray) -> "_Scored":
        return _Scored(self.model, self.right[points], self.leads[:, points])

    @property
    def count(self) -> int:
        """How many are right."""
        return int(self.right.sum())


class Scores:
    """The test points, and how the last model of each setting was scored.

    Parameters
    ----------
    features : array of shape (points, q)
    classes : array of shape (points,)

    Attributes
    ----------
    products
        How many predictions were computed so far, as a share of those of all points.
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
        self.products = 0.0
        self._copies = np.empty_like(features[:_CHUNK])  # of some points: new memory is slow
        self._last: dict[str, _Scored] = {}
        self._bends: dict[str, bool] = {}

    def accuracies(self, models: Mapping[str, Sequence[Matrix]]) -> dict[str, list[float]]:
        """Return the accuracies of each setting's models, which are those of successive rounds."""
        right: dict[str, list[int]] = {key: [] for key in models}
        spans = {key: list(some) for key, some in models.items()}
        news = {key: some[0] for key, some in models.items() if key not in self._last}
        for key, scored in self._scored(news).items():
            self._last[key], right[key] = scored, [scored.count]
            del spans[key][0]
        ends = {key: span[-1] for key, span in spans.items() if span}
        every = np.arange(len(self.classes))
        for key, last in self._scored(ends).items():
            first, between, before = self._last[key], spans[key][:-1], self.products
            counts = self._between(first, between, last, every, bends=self._bends.get(key, False))
            self._bends[key] = self.products - before > _MUCH * len(between)
            right[key] += [*counts.tolist(), last.count]
            self._last[key] = last
        return {
            key: (np.array(counts, dtype=np.float32) / np.float32(len(every))).tolist()
            for key, counts in right.items()
        }

    def _between(
        self,
        first: _Scored,
        models: Sequence[Matrix],
        last: _Scored,
        points: IntArray,
        *,
        bends: bool,
    ) -> Counts:
        """Count the right ones of some points for each model between two that are scored.

        Where the path `bends` too much for many of them, nothing is tried but to score them all.
        """
        if not models:
            return np.zeros(0, dtype=np.int64)
        slack = _slack([first.model, *models, last.model])[:, self.classes[points]]
        right = (np.minimum(first.leads, last.leads) > slack).all(axis=0)
        wrong = (np.maximum(first.leads, last.leads) < -slack).any(axis=0)
        rest, few = np.flatnonzero(~(right | wrong)), _FEW * len(self.classes)
        if len(models) == 1 or len(rest) <= few or (bends and len(rest) > len(points) / 2):
            return np.asarray(self._each(models, points[rest]) + right.sum())
        half = len(models) // 2
        (middle,) = self._score([models[half]], points[rest])
        parts = (
            self._between(first[rest], models[:half], middle, points[rest], bends=bends),
            [middle.count],
            self._between(middle, models[half + 1 :], last[rest], points[rest], bends=bends),
        )
        return np.asarray(np.concatenate(parts) + right.sum())

    def _each(self, models: Sequence[Matrix], points: IntArray) -> Counts:
        """Count the right ones of some points for each model, by scoring them."""
        found = np.zeros(len(models), dtype=np.int64)
        for some in _chunks(points):
            predictions = self._predictions(models, some)
            found += self._right(predictions, models, some).sum(axis=1)
        return found

    def _scored(self, models: Mapping[str, Matrix]) -> dict[str, _Scored]:
        """Score every point with each model."""
        scored = self._score(list(models.values()), np.arange(len(self.classes))) if models else []
        return dict(zip(models, scored, strict=True))

    def _score(self, models: Sequence[Matrix], points: IntArray) -> list[_Scored]:
        """Score some points with each of some models."""
        parts = []
        for some in _chunks(points):
            predictions, place = self._predictions(models, some), np.arange(len(some))
            right = self._right(predictions, models, some)
            own = predictions[:, self.classes[some], place]
            leads = (own[:, None] - predictions) / self.norms[some]
            leads[:, self.classes[some], place] = np.inf
            parts.append([_Scored(*one) for one in zip(models, right, leads, strict=True)])
        return [_Scored.joined(own_parts) for own_parts in zip(*parts, strict=True)]

    def _predictions(self, models: Sequence[Matrix], points: IntArray) -> Matrix:
        """Return the predictions of each model, shape (models, c, points)."""
        self.products += len(models) * len(points) / len(self.classes)
        span, count = slice(int(points[0]), int(points[-1]) + 1), len(models)
        features, places = self.features[span], points - span.start
        if len(features) * count > len(points) * (count + _COPY):  # many others are between them
            features, places = self._copies[: len(points)], np.arange(len(points))
            np.take(self.features, points, axis=0, out=features, mode="clip")
        product = np.concatenate(models, axis=1).T @ features.T
        predictions = product.reshape(count, -1, len(features))
        return predictions if len(features) == len(points) else predictions[:, :, places]

    def _right(self, predictions: Matrix, models: Sequence[Matrix], points: IntArray) -> Mask:
        """Return whether the largest prediction is that of the class, shape (models, points)."""
        lengths = np.array([_lengths(model).max() for model in models], dtype=np.float32)
        top = predictions.max(axis=1)
        doubt = 2 * _ROUNDING * lengths[:, None] * self.norms[points]
        close = (predictions >= (top - doubt)[:, None]).sum(axis=1, dtype=np.int32)
        right = predictions[:, self.classes[points], np.arange(len(points))] == top
        for m in np.flatnonzero((close != 1).any(axis=1)).tolist():  # ties, and what is not finite
            some = points[close[m] != 1]
            exact = self.features[some].astype(np.float64) @ models[m].astype(np.float64)
            right[m, close[m] != 1] = exact.argmax(axis=1) == self.classes[some]
        return np.asarray(right)


def _chunks(points: IntArray) -> Iterator[IntArray]:
    """Yield some points at a time: their predictions stay in the cache."""
    for start in range(0, len(points), _CHUNK):
        yield points[start : start + _CHUNK]


def _slack(models: Sequence[Matrix]) -> Matrix:
    """Return how far a lead may be from the line between the first and the last, shape (c, c)."""
    first, last, steps = models[0], models[-1], len(models) - 1
    strays = np.zeros(first.shape[1], dtype=np.float32)
    for k, model in enumerate(models[1:-1], start=1):
        line = np.float32(1 - k / steps) * first + np.float32(k / steps) * last
        strays = np.maximum(strays, _lengths(model - line))
    strays += _ROUNDING * max(_lengths(model).max() for model in models)
    return np.asarray(strays[:, None] + strays)


def _lengths(model: Matrix) -> Matrix:
    """Return the norm of each column."""
    return np.asarray(np.sqrt(np.einsum("qc,qc->c", model, model)))
