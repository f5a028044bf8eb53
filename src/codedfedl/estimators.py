"""Federated training as scikit-learn estimators: `fit`, `predict`, `score`.

All data are in one place here, and the fleet is simulated: an estimator shows what a federation
would learn, and how long that would take. The result is an ordinary model.
"""

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import (  # type: ignore[import-untyped]
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
)
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
    check_classification_targets,
)
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    validate_data,
)

from codedfedl.arrays import FloatArray
from codedfedl.core.disclosure import only_private
from codedfedl.data import Dataset
from codedfedl.data.dataset import texts
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Devices, Fleet
from codedfedl.learning.features import (
    Encoded,
    Encoder,
    FeatureMap,
    Tiles,
    components_for,
    encoder_of,
    feature_map,
    map_settings,
    typical_sigma,
)
from codedfedl.learning.features.encoder import names_encoder
from codedfedl.models.files import save_model
from codedfedl.models.model import Model
from codedfedl.random import stream
from codedfedl.schemes import Scheme, scheme_class
from codedfedl.simulation.single import deal_to, train

SCORED_POINTS = 2000
"""Training points on which every round is scored."""

_WHOLE, _REAL = int | np.integer, int | float | np.number
_COUNT = (1, _WHOLE, "a whole number above 0")
_POSITIVE = (1e-300, _REAL, "a finite number above 0")
_LIMITS: dict[str, tuple[float, Any, str]] = {
    **dict.fromkeys(("n_components", "epochs", "batches"), _COUNT),
    **dict.fromkeys(("step", "sigma"), _POSITIVE),
    "ridge": (0, _REAL, "a finite number, 0 or more"),
    "operations": (0, _WHOLE, "a whole number, 0 or more, or None"),
}


class _CodedFedL(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    # `clients` is routed through pipelines, searches and cross-validation without being asked for.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"clients": True}

    def __init__(
        self,
        scheme: str | Scheme = "coded-newton",
        *,
        fleet: Fleet | Devices | str | Path | None = None,
        features: Any = "structured",
        n_components: int | None = None,
        sigma: float | None = None,
        image: tuple[int, int, int] | None = None,
        ridge: float = 1e-4,
        epochs: int = 100,
        step: float = 1.0,
        batches: int = 1,
        operations: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.scheme = scheme
        self.fleet = fleet
        self.features = features
        self.n_components = n_components
        self.sigma = sigma
        self.image = image
        self.ridge = ridge
        self.epochs = epochs
        self.step = step
        self.batches = batches
        self.operations = operations
        self.random_state = random_state

    def _train(
        self, points: FloatArray, labels: npt.NDArray[Any], classes: int | None, clients: Any
    ) -> None:
        """Simulate the federation on these points, and keep the results."""
        seed = self._seed()
        # Far from 0, float32 would not tell points apart; an RBF kernel is shift-invariant.
        shifted = self._features(1.0, seed, len(points)).shift_invariant and not self._is_private
        self.center_ = points.mean(axis=0) if shifted else np.zeros(points.shape[1])
        near = points - self.center_
        scored = np.sort(stream(seed, "subset").permutation(len(points))[:SCORED_POINTS])
        dataset = Dataset("X", near, labels, near[scored], labels[scored], classes)
        dealt = deal_to(self.fleet, clients, dataset.labels, seed)
        self.sigma_ = typical_sigma(near) if self.sigma is None else float(self.sigma)
        how = {name: getattr(self, name) for name in ("batches", "epochs", "step", "ridge")}
        given = self._features(self.sigma_, seed, len(points))
        trained = train(dataset, dealt, given, self.scheme, **how, seed=seed)
        self.feature_map_, self.coef_ = trained.features, trained.weights
        self.fleet_, self.plan_ = trained.fleet, trained.plan
        self.privacy_, self.history_ = trained.privacy, trained.history
        self.training_hours_, self.total_hours_ = trained.hours
        self.n_iter_ = int(trained.history["round"][-1])
        self._card = {**trained.card, "calibrated_on": None, "temperature": None}
        # A private scheme is not calibrated: its budget does not cover this.
        if classes is not None and not self._is_private and np.isfinite(self.coef_).all():
            model = Model(self.feature_map_, self.coef_, points.shape[1], np.arange(classes))
            which = f"{len(scored):,} of the training points"
            self._card |= model.calibrated(near[scored], labels[scored], which).card

    def _inputs(self, points: Any, labels: Any, **checks: Any) -> tuple[FloatArray, Any]:
        """Return points and labels, checked; points are embeddings where there is an encoder."""
        self.encoder_: Encoder | None = None
        text, named = np.asarray(points).dtype.kind in "OUT", isinstance(self.features, str)
        if not named or names_encoder(self.features):
            how: dict[str, Any] = {"text": text, "normalise": named, "operations": self.operations}
            self.encoder_ = encoder_of(self.features, **how)
        if self.encoder_ is None or not text:
            points, labels = validate_data(self, points, labels, dtype=np.float64, **checks)
        else:
            points = texts("X", np.asarray(points))
            labels = check_array(labels, ensure_2d=False, dtype=None)
            check_consistent_length(points, labels)
        if self.encoder_ is not None:
            points = self.encoder_.transform(points).astype(np.float64)
        return points, labels

    def _features(self, sigma: float, seed: int, points: int) -> FeatureMap:
        """Return the feature map of the points that `_inputs` returns."""
        if self.encoder_ is None:
            size = self.n_components or components_for(points)
            return feature_map(self.features, size, sigma, seed, Tiles(self.image))
        known = self.operations is not None or self.encoder_.digest
        return Encoded(self.encoder_.macs(getattr(self, "n_features_in_", 1)) if known else 0)

    def _seed(self) -> int:
        """Check the parameters before any work; return the seed."""
        for name, (least, kinds, wanted) in _LIMITS.items():
            value = getattr(self, name)
            if value is None and name in ("n_components", "sigma", "operations"):
                continue
            if not isinstance(value, kinds) or not least <= value < np.inf:
                raise InputError(f"{name} is {value!r}: must be {wanted}")
        if self._is_private and self.sigma is None:
            raise InputError(
                "sigma is None, which is computed from the points outside the privacy budget: give "
                "a number, known beforehand or from public points, where the scheme is private"
            )
        if isinstance(self.random_state, int | np.integer):
            if not 0 <= self.random_state < 2**32:
                raise InputError(f"random_state is {self.random_state}: must be in [0, 2^32)")
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    @property
    def _is_private(self) -> bool:
        """Whether nothing but the scheme's own sums may read the points."""
        scheme = scheme_class(self.scheme) if isinstance(self.scheme, str) else self.scheme
        if not hasattr(scheme, "receive"):
            raise InputError(f"scheme is {scheme!r}: give a scheme's name, or a scheme")
        return only_private(scheme.info.disclosure)

    def to_model(self) -> Model:
        """Return what was learned as a model that stands alone."""
        check_is_fitted(self)
        features = self.feature_map_ if self.encoder_ is None else self.encoder_
        return Model(
            features=features,
            weights=self.coef_,
            inputs=getattr(self, "n_features_in_", 1),
            classes=getattr(self, "classes_", None),
            columns=tuple(getattr(self, "feature_names_in_", ())),
            center=self.center_ if self.encoder_ is None else None,
            offset=getattr(self, "offset_", None),
            scale=getattr(self, "scale_", None),
            temperature=self._card["temperature"],
            card={**self._card, "features": map_settings(features)},
        )

    def save_model(self, path: str | Path) -> None:
        """Write the model to an ``.npz`` file, which `codedfedl.load_model` reads."""
        save_model(self.to_model(), path)

    def _raw(self, points: Any) -> npt.NDArray[Any]:
        """Return points as the model takes them, checked."""
        check_is_fitted(self)
        if self.encoder_ is not None and self.encoder_.text:
            return texts("X", np.asarray(points))
        return np.asarray(validate_data(self, points, reset=False, dtype=np.float64))


class CodedFedLClassifier(ClassifierMixin, _CodedFedL):  # type: ignore[misc]
    """A classifier trained by a simulated federation of slow clients with lossy links.

    With a private scheme nothing that is fitted depends on the points except through its noisy
    sums. ``docs/explanation/privacy.md`` says so under "Side doors", and what is assumed public.

    Parameters
    ----------
    scheme
        A scheme's name, or a scheme with its settings, such as ``Coded(redundancy=0.2)`` from
        `codedfedl.schemes.coded`.
    fleet
        The clients: a `Fleet`, `Devices`, or the path of a file of either. By default the paper's
        thirty, or as many as `fit` names, or fewer if there is little data; from the paper's
        fastest processor and link to the slowest.
    features
        ``structured``, ``fourier`` (dearer for the clients), ``patches`` (of images) or
        ``identity`` (a linear model). Or a frozen encoder that every client has: a fitted
        transformer or pipeline, an ONNX file, or a function as ``module:function``, whose outputs
        a linear model is trained on. A transformer's outputs are taken as they are, those of the
        others are scaled to length 1.
    n_components
        Number of features, by default a quarter of the points, from 500 to 2,000; ``patches`` has
        at most as many as its grid allows.
    sigma
        Width of the RBF kernel; half the typical distance between two points if None, which a
        private scheme refuses.
    image : (height, width, channels)
        Shape of the images for ``patches``; None for squares with one channel.
    ridge
        λ, per point.
    epochs, step, batches
        For schemes that descend along gradients: passes over the data, step size (at most 1 is safe
        for Fourier features), and mini-batches per pass. `coded-newton` plans its own rounds.
    operations
        Multiply-accumulates of the encoder for one point, which `total_hours_` charges; if None
        they are counted for an ONNX file, and nothing is charged for any other encoder.
    random_state
        Seed of features, codes, delays and the partition of the points over clients.

    Attributes
    ----------
    classes_ : array of shape (c,)
    coef_ : array of shape (q, c)
        The model, on the features of `feature_map_`.
    plan_ : Plan, ColdStart, PrivatePlan or None
        Deadline and loads of `coded`, deadlines and rounds of `coded-newton` and `private`.
    history_ : dict of arrays
        For every round: ``round``, ``training_hours``, ``total_hours``, ``arrived`` (how many
        clients answered in time) and ``score`` (on at most 2,000 of the training points; not where
        the scheme is private).
    training_hours_, total_hours_ : float
        Simulated training time on the fleet: rounds only, and with the set-up.
    center_ : array of shape (d,)
        Subtracted from every point first; 0 where the scheme is private.
    privacy_ : dict or None
        Guarantee of a private scheme: ε, δ, adjacency, every release, and against whom it holds.
    encoder_ : Encoder or None
        What X goes through first; None if `features` are not an encoder's.
    sigma_, feature_map_, fleet_, n_iter_, n_features_in_, feature_names_in_
        The values used.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = CodedFedLClassifier(n_components=200).fit(X[:1500], y[:1500])
    >>> bool(model.score(X[1500:], y[1500:]) > 0.85)
    True
    """

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:  # noqa: N803
        """Train on the points of all clients.

        Parameters
        ----------
        X : array or data frame of shape (n, d)
            Or texts, shape (n,), for an encoder that takes them.
        y : array of shape (n,)
            Classes of any kind.
        clients : array of shape (n,), optional
            The name of each point's client, as in the fleet; by default assigned at random.
        """
        X, y = self._inputs(X, y)  # noqa: N806
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) == 1:
            raise InputError(
                f"y has one class, {self.classes_[0]}: there is nothing to distinguish; give "
                "points of at least two classes"
            )
        self._train(X, numbers, len(self.classes_), clients)
        return self

    def decision_function(self, X: Any) -> FloatArray:  # noqa: N803
        """Return a score per class, shape (n, c); for two classes, the second minus the first."""
        scores = self.to_model().scores(self._raw(X))
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> FloatArray:  # noqa: N803
        """Return the probability of every class, shape (n, c); refused for a private scheme."""
        return self.to_model().predict_proba(self._raw(X))

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class with the largest output, shape (n,)."""
        return self.to_model().predict(self._raw(X))


class CodedFedLRegressor(MultiOutputMixin, RegressorMixin, _CodedFedL):  # type: ignore[misc]
    """A regressor trained by a simulated federation of slow clients with lossy links.

    Targets are standardised to mean 0 and variance 1 for training, with sums that clients could
    compute together; a private scheme is refused, since its budget does not cover these. Everything
    except `classes_` is as in `CodedFedLClassifier`.
    """

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:  # noqa: N803
        """Train on the points of all clients, as the classifier; y has shape (n,) or (n, c)."""
        if self._is_private:
            raise InputError(
                "the scheme is private, and targets are standardised by their exact mean and "
                "variance, outside its budget: use CodedFedLClassifier, with ranges of the target "
                "as classes"
            )
        X, y = self._inputs(X, y, multi_output=True, y_numeric=True)  # noqa: N806
        columns = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        self.offset_, spread = columns.mean(axis=0), columns.std(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        self._flat = np.ndim(y) == 1
        self._train(X, (columns - self.offset_) / self.scale_, None, clients)
        return self

    def predict(self, X: Any) -> FloatArray:  # noqa: N803
        """Return the predicted numbers, in the shape of the training targets."""
        predicted = np.asarray(self.to_model().predict(self._raw(X)))
        return predicted if self._flat else predicted.reshape(len(predicted), -1)
