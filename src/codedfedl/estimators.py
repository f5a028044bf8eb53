"""Federated training as scikit-learn estimators: `fit`, `predict`, `score`.

All data are in one place here, and the fleet is simulated: an estimator shows what a federation
would learn, and how long that would take. The result is an ordinary model.
"""

from collections.abc import Mapping
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
from sklearn.utils import (  # type: ignore[import-untyped]
    check_array,
    check_consistent_length,
    check_random_state,
)
from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
    check_classification_targets,
)
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    check_is_fitted,
    validate_data,
)

from codedfedl.arrays import FloatArray
from codedfedl.core.columns import round_columns
from codedfedl.core.disclosure import only_private
from codedfedl.data import Dataset, mini_batches
from codedfedl.data.dataset import texts
from codedfedl.data.owners import dealt, fleet_of, known_clients
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Devices, Fleet
from codedfedl.learning.features import (
    Encoded,
    Encoder,
    FeatureMap,
    Tiles,
    encoder_of,
    feature_map,
    map_settings,
    typical_sigma,
)
from codedfedl.learning.features.encoder import names_encoder
from codedfedl.learning.optimisers import Schedule
from codedfedl.models.files import save_model
from codedfedl.models.model import Model, fitted_temperature
from codedfedl.planning.cold_start import ColdStart
from codedfedl.planning.plan import Plan
from codedfedl.planning.private import PrivatePlan
from codedfedl.random import stream
from codedfedl.schemes import Scheme, scheme_class, scheme_for
from codedfedl.simulation.client_data import embedded, task_of
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.models import privacy_facts

__all__ = ["CodedFedLClassifier", "CodedFedLRegressor"]

SCORED_POINTS = 2000
"""Training points on which every round is scored."""


class _CodedFedL(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    # `clients` is routed through pipelines, searches and cross-validation without being asked for.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"clients": True}

    def __init__(
        self,
        scheme: str | Scheme = "coded-newton",
        *,
        fleet: Fleet | Devices | str | Path | None = None,
        features: Any = "fourier",
        n_components: int = 500,
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
        seed = self._check_parameters()
        # Far from 0, float32 would not tell points apart; an RBF kernel is shift-invariant.
        tiles = Tiles(self.image)
        shifted = self._drawn(1.0, seed, tiles).shift_invariant and not self._is_private
        self.center_ = points.mean(axis=0) if shifted else np.zeros(points.shape[1])
        near = points - self.center_
        scored = np.sort(stream(seed, "subset").permutation(len(points))[:SCORED_POINTS])
        dataset = Dataset("X", near, labels, near[scored], labels[scored], classes)
        known = known_clients(self.fleet)
        names, shards = dealt(clients, dataset.labels, known, seed)
        parts = mini_batches(shards, self.batches)
        scheme = self._scheme(max(len(shard) for shard in shards))
        self.sigma_ = typical_sigma(near) if self.sigma is None else float(self.sigma)
        given = self._drawn(self.sigma_, seed, tiles)
        drawn = scheme.info.features or given
        self.feature_map_: FeatureMap = drawn if self.encoder_ is None else given
        schedule = Schedule(self.step, 1.0, ())
        task = task_of(
            dataset,
            parts,
            self.feature_map_,
            epochs=self.epochs,
            schedule=schedule,
            ridge=self.ridge,
        )
        fleet = fleet_of(known, names, task.workload, task.points[0], seed)
        scheme.check(fleet)
        problem = embedded(dataset, parts, self.feature_map_, "cpu")
        simulation = Simulation(problem, entries(task, fleet, {scheme.info.name: scheme}), seed)
        for _ in simulation.run():
            pass
        self._keep(simulation.settings[0], fleet)
        self._points_seen = len(scored)
        scores = np.asarray(self.feature_map_.transform(near[scored]) @ self.coef_)
        # A private scheme is not calibrated: its budget does not cover this.
        usable = classes is not None and np.isfinite(scores).all() and not self._is_private
        self._temperature = fitted_temperature(scores, labels[scored]) if usable else None

    def _inputs(self, points: Any, labels: Any, **checks: Any) -> tuple[FloatArray, Any]:
        """Return points and labels, checked; points are embeddings where there is an encoder."""
        self.encoder_: Encoder | None = None
        named = isinstance(self.features, str)
        if named and not names_encoder(self.features):
            points, labels = validate_data(self, points, labels, dtype=np.float64, **checks)
            return points, labels
        text = np.asarray(points).dtype.kind in "OUT"
        self.encoder_ = encoder_of(
            self.features, text=text, normalise=named, operations=self.operations
        )
        if not text:
            points, labels = validate_data(self, points, labels, dtype=np.float64, **checks)
        else:
            points, labels = _texts(points), check_array(labels, ensure_2d=False, dtype=None)
            check_consistent_length(points, labels)
        return self.encoder_.transform(points).astype(np.float64), labels

    def _drawn(self, sigma: float, seed: int, tiles: Tiles) -> FeatureMap:
        """Return the feature map of the points that `_inputs` returns."""
        if self.encoder_ is None:
            return feature_map(self.features, self.n_components, sigma, seed, tiles)
        known = self.operations is not None or self.encoder_.digest
        return Encoded(self.encoder_.macs(getattr(self, "n_features_in_", 1)) if known else 0)

    def _check_parameters(self) -> int:
        """Check the parameters before any work, and return the seed.

        A seed that is given means the same everywhere.
        """
        for name in ("n_components", "epochs", "batches"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name} is {value!r}: must be a whole number above 0")
        for name, least in (("ridge", 0.0), ("step", np.nextafter(0, 1)), ("sigma", 1e-300)):
            value = getattr(self, name)
            known = isinstance(value, int | float | np.number) and least <= value < np.inf
            if not known and not (name == "sigma" and value is None):
                least_said = "at least" if name == "ridge" else "above"
                raise InputError(f"{name} is {value!r}: must be a finite number {least_said} 0")
        if self.operations is not None and (
            not isinstance(self.operations, int | np.integer) or self.operations < 0
        ):
            raise InputError(
                f"operations is {self.operations!r}: must be a whole number, 0 or more, or None"
            )
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
        return isinstance(scheme, type | Scheme) and only_private(scheme.info.disclosure)

    def _scheme(self, most_points: int) -> Scheme:
        """Return the scheme; one given by name mixes less if no client has many points."""
        if not isinstance(self.scheme, str):
            if not hasattr(self.scheme, "receive"):
                raise InputError(f"scheme is {self.scheme!r}: give a scheme's name, or a scheme")
            return self.scheme
        return scheme_for(self.scheme, {}, most_points, rows=4)

    def _keep(self, setting: Setting, fleet: Fleet) -> None:
        """Keep the model and the records: nothing here holds a training point."""
        state = setting.state
        self.coef_ = np.asarray(state.model, dtype=np.float64)
        self.fleet_ = fleet
        described = setting.scheme.describe(state)
        self.plan_: Plan | ColdStart | PrivatePlan | None = described.plan
        self.privacy_ = privacy_facts(described.account)
        recorded = round_columns(setting.records)
        columns = ("round", "training_hours", "total_hours", "arrived")
        scores = {} if self._is_private else {"score": recorded["metric"]}
        self.history_: Mapping[str, npt.NDArray[Any]] = {
            **{name: recorded[name] for name in columns},
            **scores,
        }
        self.training_hours_ = float(recorded["training_hours"][-1])
        self.total_hours_ = float(recorded["total_hours"][-1])
        self.n_iter_ = int(self.history_["round"][-1])

    def to_model(self) -> Model:
        """Return what was learned as a model that stands alone."""
        check_is_fitted(self)
        classes = getattr(self, "classes_", None)
        if classes is not None and classes.dtype == object:
            classes = classes.astype(str)
        features = self.feature_map_ if self.encoder_ is None else self.encoder_
        calibrated = f"{self._points_seen:,} of the training points"
        card = {
            "scheme": self.scheme if isinstance(self.scheme, str) else self.scheme.info.name,
            "features": map_settings(features),
            "clients": len(self.fleet_.points),
            "rounds": self.n_iter_,
            "training_hours": self.training_hours_,
            "total_hours": self.total_hours_,
            "simulated": True,
            "epsilon": (self.privacy_ or {}).get("epsilon"),
            "privacy": self.privacy_,
            "calibrated_on": None if self._temperature is None else calibrated,
            "temperature": self._temperature,
        }
        return Model(
            features=features,
            weights=self.coef_,
            inputs=getattr(self, "n_features_in_", 1),
            classes=classes,
            columns=tuple(getattr(self, "feature_names_in_", ())),
            center=self.center_ if self.encoder_ is None else None,
            offset=getattr(self, "offset_", None),
            scale=getattr(self, "scale_", None),
            temperature=self._temperature,
            card=card,
        )

    def save_model(self, path: str | Path) -> None:
        """Write the model to an ``.npz`` file, which `codedfedl.load_model` reads."""
        save_model(self.to_model(), path)

    def _scores(self, points: Any) -> FloatArray:
        """Return the model's outputs for raw points, shape (n, c)."""
        check_is_fitted(self)
        if self.encoder_ is not None and self.encoder_.text:
            return self.to_model().scores(_texts(points))
        raw = validate_data(self, points, reset=False, dtype=np.float64)
        return self.to_model().scores(raw)


def _texts(points: Any) -> npt.NDArray[np.str_]:
    """Return texts of shape (n, 1), refusing cells that are no texts."""
    held = np.asarray(points)
    if not all(isinstance(cell, str) for cell in held.ravel()):
        raise InputError("X holds words and other things: give numbers, or one text per point")
    return texts("X", held.astype(np.str_))


class CodedFedLClassifier(ClassifierMixin, _CodedFedL):  # type: ignore[misc]
    """A classifier trained by a simulated federation of slow clients with lossy links.

    With a private scheme nothing that is fitted depends on the points except through its noisy
    sums: see "Side doors" in ``docs/privacy.md``, also for what is assumed to be public.

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
        ``fourier``, ``structured`` (cheaper on the clients), ``patches`` (of images) or
        ``identity`` (a linear model). Or a frozen encoder that every client has: a fitted
        transformer or pipeline, an ONNX file, or a function as ``module:function``, whose outputs
        a linear model is trained on. A transformer's outputs are taken as they are, those of the
        others are scaled to length 1.
    n_components
        Number of features; ``patches`` has at most as many as its grid allows.
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
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class with the largest output, shape (n,)."""
        largest = self._scores(X).argmax(axis=1)
        return np.asarray(self.classes_[largest])


class CodedFedLRegressor(MultiOutputMixin, RegressorMixin, _CodedFedL):  # type: ignore[misc]
    """A regressor trained by a simulated federation of slow clients with lossy links.

    Targets are standardised to mean 0 and variance 1 for training, with sums that clients could
    compute together; a private scheme is refused, since its budget does not cover these. Everything
    except `classes_` is as in `CodedFedLClassifier`.
    """

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:  # noqa: N803
        """Train on the points of all clients.

        Parameters
        ----------
        X : array or data frame of shape (n, d)
        y : array of shape (n,) or (n, c)
        clients : array of shape (n,), optional
            The name of each point's client, as in the fleet; by default assigned at random.
        """
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
        scores = self._scores(X)
        return scores[:, 0] if self._flat else scores
