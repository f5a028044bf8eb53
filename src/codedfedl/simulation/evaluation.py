"""What models are worth: the metric on the test points after every round.

`Measuring` gives records their metric at once, in one product of all settings' models. On a CPU,
and with many test points, it waits for some rounds and scores few of the points (`Scores`):

Over some rounds a model moves almost along a line. The *lead* of a point's class over another,
x·(β_y − β_k)/‖x‖, is then almost a line too: between two rounds at which it is known, it lies
between its two values, give or take how far the columns y and k of the model stray from the line.
So all points are scored at the first and the last of some rounds, which decides most of them for
all rounds between; the others are scored in the middle, and so on. `learning.metrics.accuracy` of
all predictions is the naive twin. What is closer than float32 can tell is decided in float64, so
that the accuracy depends on the model alone, and not on which rounds are scored together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, is_numpy_array

from codedfedl.arrays import Array, IntArray, Mask, to_host
from codedfedl.core.task import Task
from codedfedl.learning.metrics import accuracy, r_squared
from codedfedl.simulation.client_data import Problem, Problems
from codedfedl.simulation.fast import side_by_side

if TYPE_CHECKING:
    from codedfedl.simulation.engine import Setting


MIN_SCORED_NUMBERS = 1 << 20  # Fewer features of test points are scored in no time.
POINTS_AT_ONCE = 2048  # The predictions of so many points stay in the cache.
MAX_UNDECIDED_SHARE = 1 / 8  # Of all points; so many are scored in every round without bisecting.
ROUNDING_SHARE = 1e-5  # Of ‖x‖·‖β‖: a float32 product is never so far off.
MEASURED_SHARE = 0.01  # Of the time so far: after so much more, a network is evaluated again.

Matrix = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]


class Measuring:
    """Gives records their metric: at once, or together with those of the next rounds.

    Attributes
    ----------
    waiting
        Settings with the number of a record that has no metric yet, and its model.
    """

    def __init__(self, problems: Problems, problem: Problem, *, fast: bool = True) -> None:
        self.problems = problems
        self.waiting: list[tuple[Setting, int, Array]] = []
        self._scores = Scores.of(problem) if fast else None

    @property
    def can_wait(self) -> bool:
        """Whether all that waits is better measured with that of the next rounds."""
        linear = (_on_points(setting.state.task) for setting, _, _ in self.waiting)
        return bool(self.waiting) and self._scores is not None and all(linear)

    def add(self, settings: Sequence["Setting"]) -> None:
        """Take the last records of settings, where these have a model."""
        for setting in settings:
            linear = setting.state.task.learner.quadratic
            if setting.records[-1].has_model and (linear or not self._carried(setting)):
                self.waiting.append((setting, len(setting.records) - 1, setting.state.model))

    def complete(self, settings: Sequence["Setting"]) -> None:
        """Have the last records of settings measured by their own models."""
        for s in settings:
            if s.records and s.records[-1].has_model and not s.state.task.learner.quadratic:
                self.waiting.append((s, len(s.records) - 1, s.state.model))

    def _carried(self, setting: "Setting") -> bool:
        """Give a record the metric of the last one, where hardly any time has passed since.

        A network is dear to evaluate: this is done whenever the clock has advanced by a hundredth.
        A target is then met in a record at most so much later than in truth.
        """
        last, now = setting.records[-1], setting.timeline.now
        measured = [np.log(t) // MEASURED_SHARE for t in (max(now - last.seconds, 1e-9), now)]
        if last.is_setup or len(setting.rounds) < 2 or measured[0] != measured[1]:
            return False
        setting.records[-1] = replace(last, metric=setting.records[-2].metric)
        return True

    @np.errstate(over="ignore", invalid="ignore")  # what diverges is a result, not an error
    def finish(self) -> None:
        """Give all records that wait their metric."""
        together: dict[Any, tuple[Task, list[tuple[Setting, int, Array]]]] = {}
        for record in self.waiting:
            task = record[0].state.task
            together.setdefault((task.learner, task.features), (task, []))[1].append(record)
        self.waiting = []
        for task, members in together.values():
            if self._scores is not None and _on_points(task):
                metrics = iter(self._scored(self._scores, members))
            else:
                every = self.metrics(task, [model for _, _, model in members])
                metrics = iter(to_host(every).tolist())
            for setting, k, _ in members:
                setting.records[k] = replace(setting.records[k], metric=next(metrics))

    def _scored(
        self, scores: "Scores", members: Sequence[tuple["Setting", int, Array]]
    ) -> list[float]:
        models: dict[str, list[Array]] = {}
        for setting, _, model in members:
            models.setdefault(setting.label, []).append(model)
        accuracies = {label: iter(each) for label, each in scores.accuracies(models).items()}
        return [next(accuracies[setting.label]) for setting, _, _ in members]

    def metrics(self, task: Task, models: Sequence[Array]) -> Array:
        """Return the accuracy or R² of models: of linear ones, all in one product."""
        problem, learner = self.problems.of(task), task.learner
        if learner.quadratic:
            predictions = stacked_predictions(problem.test_features, models)
        else:
            xp = array_namespace(problem.test_features)
            each = [learner.scores(model, problem.test_features) for model in models]
            predictions = xp.stack(each, axis=1)
        if problem.test_classes is not None:
            return accuracy(predictions, problem.test_classes)
        return r_squared(predictions, problem.test_targets)


def _on_points(task: Task) -> bool:
    """Whether a linear model is trained on the points as they were embedded."""
    return task.learner.quadratic and task.features is None


def stacked_predictions(features: Array, models: Sequence[Array]) -> Array:
    """Return the predictions of several models, shape (points, models, c)."""
    product, xp = features @ side_by_side(models), array_namespace(features)
    return xp.reshape(product, (product.shape[0], len(models), models[0].shape[1]))


@dataclass(frozen=True, eq=False)
class _Scored:
    """A model on test points.

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
        if classes is None or not is_numpy_array(features) or features.size < MIN_SCORED_NUMBERS:
            return None
        return cls(features, np.asarray(classes))

    def __init__(self, features: Matrix, classes: IntArray) -> None:
        self.features, self.classes = features, classes
        norms = np.sqrt(np.einsum("pq,pq->p", features, features))
        self.norms = np.maximum(norms, np.float32(1e-30))
        self.products = 0.0
        self._copies = np.empty_like(features[:POINTS_AT_ONCE])  # again and again: new memory costs
        self._last: dict[str, _Scored] = {}

    def accuracies(self, models: Mapping[str, Sequence[Matrix]]) -> dict[str, list[float]]:
        """Return the accuracies of each setting's models, which are those of successive rounds."""
        right: dict[str, list[int]] = {label: [] for label in models}
        spans = {label: list(rounds) for label, rounds in models.items()}
        news = {label: rounds[0] for label, rounds in models.items() if label not in self._last}
        for label, scored in self._all_scored(news).items():
            self._last[label], right[label] = scored, [scored.count]
            del spans[label][0]
        ends = {label: span[-1] for label, span in spans.items() if span}
        every = np.arange(len(self.classes))
        for label, last in self._all_scored(ends).items():
            counts = self._between(self._last[label], spans[label][:-1], last, every)
            right[label] += [*counts.tolist(), last.count]
            self._last[label] = last
        return {
            label: (np.array(counts, dtype=np.float32) / np.float32(len(every))).tolist()
            for label, counts in right.items()
        }

    def _between(
        self, first: _Scored, models: Sequence[Matrix], last: _Scored, points: IntArray
    ) -> Counts:
        """Count the right ones of the points for each model between two that are scored."""
        if not models:
            return np.zeros(0, dtype=np.int64)
        slack = _slack([first.model, *models, last.model])[:, self.classes[points]]
        right = (np.minimum(first.leads, last.leads) > slack).all(axis=0)
        wrong = (np.maximum(first.leads, last.leads) < -slack).any(axis=0)
        rest = np.flatnonzero(~(right | wrong))
        if len(models) == 1 or len(rest) <= MAX_UNDECIDED_SHARE * len(self.classes):
            return np.asarray(self._each(models, points[rest]) + right.sum())
        half = len(models) // 2
        (middle,) = self._score([models[half]], points[rest])
        parts = (
            self._between(first[rest], models[:half], middle, points[rest]),
            [middle.count],
            self._between(middle, models[half + 1 :], last[rest], points[rest]),
        )
        return np.asarray(np.concatenate(parts) + right.sum())

    def _each(self, models: Sequence[Matrix], points: IntArray) -> Counts:
        """Count the right ones of the points for each model, by scoring them."""
        counts = np.zeros(len(models), dtype=np.int64)
        for chunk in _chunks(points):
            counts += self._right(self._predictions(models, chunk), models, chunk).sum(axis=1)
        return counts

    def _all_scored(self, models: Mapping[str, Matrix]) -> dict[str, _Scored]:
        """Score every point with each model."""
        scored = self._score(list(models.values()), np.arange(len(self.classes))) if models else []
        return dict(zip(models, scored, strict=True))

    def _score(self, models: Sequence[Matrix], points: IntArray) -> list[_Scored]:
        """Score the points with each of the models."""
        rights, leads = [], []
        for chunk in _chunks(points):
            predictions = self._predictions(models, chunk)
            rights.append(self._right(predictions, models, chunk))
            of_class = (slice(None), self.classes[chunk], np.arange(len(chunk)))
            lead = (predictions[of_class][:, None] - predictions) / self.norms[chunk]
            lead[of_class] = np.inf
            leads.append(lead)
        parts = models, np.concatenate(rights, axis=1), np.concatenate(leads, axis=2)
        return [_Scored(*part) for part in zip(*parts, strict=True)]

    def _predictions(self, models: Sequence[Matrix], points: IntArray) -> Matrix:
        """Return the predictions of each model, shape (models, c, points)."""
        self.products += len(models) * len(points) / len(self.classes)
        features = self.features[int(points[0]) : int(points[-1]) + 1]
        if len(features) > len(points):  # others are between them
            features = self._copies[: len(points)]
            np.take(self.features, points, axis=0, out=features, mode="clip")
        product = np.concatenate(models, axis=1).T @ features.T
        return product.reshape(len(models), -1, len(points))

    def _right(self, predictions: Matrix, models: Sequence[Matrix], points: IntArray) -> Mask:
        """Return whether the largest prediction is that of the class, shape (models, points)."""
        lengths = np.array([_lengths(model).max() for model in models], dtype=np.float32)
        top = predictions.max(axis=1)
        doubt = 2 * ROUNDING_SHARE * lengths[:, None] * self.norms[points]
        close = (predictions >= (top - doubt)[:, None]).sum(axis=1, dtype=np.int32)
        right = predictions[:, self.classes[points], np.arange(len(points))] == top
        for m in np.flatnonzero((close != 1).any(axis=1)).tolist():  # ties, and what is not finite
            tied = points[close[m] != 1]
            exact = self.features[tied].astype(np.float64) @ models[m].astype(np.float64)
            right[m, close[m] != 1] = exact.argmax(axis=1) == self.classes[tied]
        return np.asarray(right)


def _chunks(points: IntArray) -> Iterator[IntArray]:
    """Yield the points in parts whose predictions stay in the cache."""
    for start in range(0, len(points), POINTS_AT_ONCE):
        yield points[start : start + POINTS_AT_ONCE]


def _slack(models: Sequence[Matrix]) -> Matrix:
    """Return how far a lead may be from the line between the first and the last, shape (c, c)."""
    first, last, steps = models[0], models[-1], len(models) - 1
    strays = np.zeros(first.shape[1], dtype=np.float32)
    for k, model in enumerate(models[1:-1], start=1):
        line = np.float32(1 - k / steps) * first + np.float32(k / steps) * last
        strays = np.maximum(strays, _lengths(model - line))
    strays += ROUNDING_SHARE * max(_lengths(model).max() for model in models)
    return np.asarray(strays[:, None] + strays)


def _lengths(model: Matrix) -> Matrix:
    """Return the norm of each column."""
    return np.asarray(np.sqrt(np.einsum("qc,qc->c", model, model)))
