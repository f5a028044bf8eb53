"""`Model`: everything that a prediction needs, and nothing of the data it was trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from codedfedl.arrays import FloatArray
from codedfedl.data.dataset import scaled, texts
from codedfedl.data.loading import DATASET_NAMES
from codedfedl.data.tabular import Preparation
from codedfedl.errors import InputError
from codedfedl.learning.features import Encoder, FeatureMap
from codedfedl.learning.learner import Learner, LeastSquares

_ROWS_AT_ONCE = 4096

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A linear model on the features of a map, or a network.

    It takes inputs in the form it was trained on: those of `load_dataset`, or of an estimator's
    `fit`. `raw` converts the values of a file to that form. Where it was trained on texts, points
    are texts, shape (n,) or (n, 1).

    Parameters
    ----------
    features
        The feature map.
    weights : array of shape (q, c), or of the learner's shape
    inputs
        Number of values in a point; 1 for a text.
    classes : array of shape (c,), optional
        Names of the classes, in the order of the outputs; None means regression.
    columns, labels
        Names of the input columns and of the label columns, if known.
    low, span : arrays of shape (d,), optional
        A file's values become inputs as (value − low) / span.
    preparation
        How the raw columns of a table become inputs, instead of a scale.
    center : array of shape (d,), optional
        Subtracted from every input first.
    offset, scale : arrays of shape (c,), optional
        Outputs are predictions·scale + offset: labels are scaled or centred for training.
    temperature
        Divides the outputs for probabilities; None if the model was not calibrated.
    learner
        What was trained, and scores points; least squares by default.
    card
        Facts about the model: data, scheme, fleet, accuracy, versions, date.
    """

    features: FeatureMap
    weights: FloatArray
    inputs: int
    classes: Array | None = None
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    low: FloatArray | None = None
    span: FloatArray | None = None
    center: FloatArray | None = None
    offset: FloatArray | None = None
    scale: FloatArray | None = None
    temperature: float | None = None
    card: Mapping[str, Any] = field(default_factory=dict)
    preparation: Preparation | None = None
    learner: Learner = None  # type: ignore[assignment]  # set below

    def __post_init__(self) -> None:
        expected = self.features.size(self.inputs)
        if not self.learner:
            if self.weights.ndim != 2 or len(self.weights) != expected:
                raise InputError(
                    f"weights has shape {self.weights.shape} where the map has {expected} "
                    "features: give a row for each"
                )
            object.__setattr__(self, "learner", LeastSquares(*self.weights.shape))
        if self.learner.inputs != expected or self.weights.shape != self.learner.shape:
            raise InputError(
                f"weights has shape {self.weights.shape} on {expected} features where the learner "
                f"has {self.learner.shape} on {self.learner.inputs}: train it again"
            )
        if not np.isfinite(self.weights).all():
            raise InputError("weights is not finite: the training diverged; choose a smaller step")
        if self.classes is not None and self.classes.shape != (self.learner.outputs,):
            raise InputError(
                f"classes has shape {self.classes.shape} where the model has "
                f"{self.learner.outputs} outputs: name every column"
            )

    @property
    def is_classifier(self) -> bool:
        """Whether it predicts classes."""
        return self.classes is not None

    @property
    def takes_text(self) -> bool:
        """Whether its inputs are texts, which its encoder takes."""
        return isinstance(self.features, Encoder) and self.features.text

    @property
    def takes_unit_inputs(self) -> bool:
        """Whether files may hold its inputs scaled to [0, 1] already: pixels of built-in data."""
        return self.card.get("data") in DATASET_NAMES

    def raw(self, values: npt.ArrayLike) -> Array:
        """Return a file's values as inputs, scaled like the training data.

        Where it was trained on a table, a row has a value of any kind for each of `columns`; None,
        NaN and an empty text are missing.

        For built-in data sets, a file may hold whole pixels or pixels scaled to [0, 1].
        """
        if self.preparation is not None:
            return self.preparation.rows(values)
        given = self._points(values)
        if self.takes_unit_inputs and given.min() >= 0 and given.max() <= 1:
            return given
        return scaled(given, self.low, self.span)

    def scores(self, points: npt.ArrayLike) -> FloatArray:
        """Return the model's outputs, shape (n, c), some rows at a time."""
        given = self._points(points)
        if self.center is not None:
            given = given - self.center
        outputs = np.empty((len(given), self.learner.outputs))
        for start in range(0, len(given), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            outputs[rows] = self.learner.scores(self.weights, self.features.transform(given[rows]))
        if self.offset is not None and self.scale is not None:
            return outputs * self.scale + self.offset
        return outputs

    def predict(self, points: npt.ArrayLike) -> Array:
        """Return a class for every point, shape (n,), or values, shape (n,) or (n, c)."""
        scores = self.scores(points)
        if self.classes is not None:
            return np.asarray(self.classes[scores.argmax(axis=1)])
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, points: npt.ArrayLike) -> FloatArray:
        """Return the probability of every class, shape (n, c): softmax(scores / temperature).

        The card says under ``calibrated_on`` which points the temperature was fitted to.
        """
        self._check_classifier("probabilities")
        if self.temperature is None:
            which = "public points: the training points are confidential"
            raise InputError(
                "the model has no probabilities, since it was not calibrated: call "
                "model.calibrated(points, labels, 'which points these are')"
                f"{f' with {which}' if self.card.get('privacy') else ''}"
            )
        return np.asarray(softmax(self.scores(points) / self.temperature, axis=1))

    def calibrated(self, points: npt.ArrayLike, labels: npt.ArrayLike, on: str) -> "Model":
        """Return the model with the temperature that maximises the likelihood of these labels.

        Parameters
        ----------
        labels : array of shape (n,)
            Classes, by the names in `classes`.
        on
            Which points these are, for the card.
        """
        self._check_classifier("probabilities")
        assert self.classes is not None
        places = {name: index for index, name in enumerate(self.classes.tolist())}
        given = np.asarray(labels).tolist()
        if unknown := [label for label in given if label not in places]:
            raise InputError(f"labels holds {unknown[0]!r}: the model's classes are {list(places)}")
        temperature = fitted_temperature(
            self.scores(points), np.array([places[label] for label in given])
        )
        card = {**self.card, "calibrated_on": on, "temperature": temperature}
        return replace(self, temperature=temperature, card=card)

    def _check_classifier(self, what: str) -> None:
        if self.classes is None:
            raise InputError(f"the model is a regression and has no {what}: ask for predictions")

    def _points(self, values: npt.ArrayLike) -> Array:
        given = np.asarray(values)
        if self.takes_text:
            return texts("inputs", given if given.dtype.kind == "U" else given.astype(str))
        if given.ndim > 2:  # images
            given = given.reshape(len(given), -1)
        if given.ndim != 2 or given.dtype.kind not in "biuf":
            raise InputError(
                f"inputs has shape {given.shape} and holds {given.dtype}: give a row of "
                f"{self.inputs} numbers for every point"
            )
        if given.shape[1] != self.inputs:
            raise InputError(
                f"inputs has {given.shape[1]} values per point where the model was trained on "
                f"{self.inputs}: give points of that size{self._image_hint()}"
            )
        if not np.isfinite(given).all():
            raise InputError("inputs is not finite: replace missing values, or remove those points")
        return given

    def _image_hint(self) -> str:
        tiles = getattr(self.features, "tiles", None)
        if tiles is None:
            return ""
        height, width, channels = tiles.on(self.inputs).image
        return f", images of {height}×{width} with {channels} channels"


def fitted_temperature(scores: FloatArray, places: npt.NDArray[np.int64]) -> float:
    """Return the temperature that maximises the likelihood of the classes at these places."""
    rows = np.arange(len(places))

    def loss(log_temperature: float) -> float:
        logs = log_softmax(scores / np.exp(log_temperature), axis=1)
        return -float(logs[rows, places].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-7.0, 3.0), method="bounded").x))
