"""Everything that a run depends on: the tables of an experiment, with their defaults."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from codedfedl.arrays import IntArray
from codedfedl.data import Dataset, load_dataset, partition
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.learning.features import (
    FEATURE_KINDS,
    Encoder,
    FeatureMap,
    Tiles,
    feature_map,
    load_encoder,
    safe_step,
)
from codedfedl.learning.learner import Learner, LeastSquares
from codedfedl.learning.optimisers import Schedule
from codedfedl.schemes import Scheme, make_scheme, scheme_class

MAX_ROUNDS = 10_000_000
STEP_OF_NETWORKS = 0.003
"""A usual step of Adam; plain descent can take thirty times as much."""


def _known_features(kind: str) -> str:
    if kind not in FEATURE_KINDS and ":" not in kind:
        raise ValueError(nearest(kind, FEATURE_KINDS))
    return kind


FeatureKind = Annotated[str, AfterValidator(_known_features)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as NumPy's RandomState takes it


class ConfigTable(BaseModel):
    """A table of an experiment: no other keys, and no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(ConfigTable):
    """The data, and their partition over the clients.

    `text` is the column of a table that holds texts, for an encoder. `low` and `high` are public
    bounds of a file's input values, which are scaled by these instead of by their own range.
    """

    name: str = "digits"
    label: str | None = None
    text: str | None = None
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    partition: Literal["sorted", "iid", "dirichlet"] = "sorted"
    concentration: float = Field(0.5, gt=0)
    batches: int = Field(1, ge=1)

    def load(self, directory: str | None = None) -> Dataset:
        """Load the data; `directory` is where the files of a built-in data set are."""
        how = self.model_dump(include={"label", "text", "low", "high"})
        return load_dataset(self.name, directory, **how)


class FleetConfig(ConfigTable):
    """``paper`` or ``phones`` with some clients, or a file: a fleet, devices, or measured delays.

    The slowest `slower_share` of the clients take `slower` times as long as the plans assume, on
    their processors and links, in the set-up and in rounds; measured delays are scaled as a whole.
    With `foreseen`, the plans know it: what a run with wrong delays is to be compared with.
    """

    name: str = "paper"
    clients: int = Field(30, ge=1)
    k1: float = Field(0.95, gt=0, le=1)
    k2: float = Field(0.8, gt=0, le=1)
    alpha: float = Field(2.0, gt=0)
    erasure: float = Field(0.1, ge=0, lt=1)
    slower: float = Field(1.0, gt=0)
    slower_share: float = Field(1.0, ge=0, le=1)
    foreseen: bool = False


class FeaturesConfig(ConfigTable):
    """The feature map; a `sigma` of ``auto`` is chosen from the data.

    `image`, `patch`, `stride` and `pool` are for ``patches``: see `learning.features.Tiles`;
    `encoder`, `operations` and `normalise` are for ``encoder``: see `learning.features.Encoder`.
    """

    kind: FeatureKind = "fourier"
    n_components: int = Field(500, ge=1)
    sigma: Annotated[float, Field(gt=0, le=1e100)] | Literal["auto"] = "auto"
    image: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    patch: PositiveInt | None = None
    stride: PositiveInt | None = None
    pool: PositiveInt | None = None
    encoder: str | None = None
    operations: NonNegativeInt | None = None
    normalise: bool = True

    def tiles(self, image: tuple[int, int, int] | None = None) -> Tiles:
        """Return how images are cut; `image` is what the data say of their shape."""
        return Tiles(self.image or image, self.patch, self.stride, self.pool)

    @property
    def known_sigma(self) -> float:
        """σ as a number."""
        if self.sigma == "auto":
            raise InputError(
                "features.sigma is 'auto', which needs all data in one place: give a number, about "
                "half the distance between two points"
            )
        return self.sigma


class ModelConfig(ConfigTable):
    """What is trained: ``linear`` is the paper's model, ``torch`` a network of PyTorch's.

    `module` is ``cnn``, ``mlp``, ``logistic``, or ``module:function``, a function of one's own that
    returns a module; `operations` are the multiply-accumulates of one point's gradient, which are
    counted by default. A `loss` of ``auto`` is the cross-entropy for classes, and else squared.
    """

    kind: Literal["linear", "torch"] = "linear"
    module: str = "cnn"
    loss: Literal["auto", "cross-entropy", "squared"] = "auto"
    operations: PositiveInt | None = None

    @property
    def name(self) -> str:
        """What tables and reports call it."""
        return self.module if self.kind == "torch" else self.kind

    def learner(
        self, features: int, labels: int, *, classes: bool, image: tuple[int, int, int] | None
    ) -> Learner:
        """Return the learner of points with so many features and label columns."""
        if self.kind == "linear":
            return LeastSquares(features, labels)
        from codedfedl.learning.torch_network import TorchNetwork, chosen_loss  # an extra

        loss = chosen_loss(self.loss, classes=classes)
        if loss == "cross-entropy" and not classes:
            raise InputError(
                "model.loss is 'cross-entropy' and the labels are numbers: use 'squared', or data "
                "with classes"
            )
        return TorchNetwork(self.module, features, labels, loss, image, self.operations)


class TrainingConfig(ConfigTable):
    """Number of epochs and step sizes; a `step` of ``auto`` is the largest safe one: `safe_step`.

    Training stops after so many `hours` on the virtual clock, with the set-up; a federation has no
    such limit.

    With `objective`, the training objective of every scheme is recorded, not only of those that aim
    at its minimum; if it is false, of none, which saves the Gram matrix of all points.
    """

    epochs: int = Field(100, ge=1, le=MAX_ROUNDS)
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"
    decay: float = Field(0.8, gt=0, le=1)
    decay_epochs: list[NonNegativeInt] = []
    ridge: float = Field(1e-4, ge=0, allow_inf_nan=False)
    target: float | None = Field(None, allow_inf_nan=False)
    hours: float | None = Field(None, gt=0)
    objective: bool | None = None


class FederationConfig(ConfigTable):
    """Settings of a federation of real clients.

    Attributes
    ----------
    clients
        Number of nodes that must be ready before the federation starts.
    deadline : seconds
        Deadline of a round, by default planned; if a scheme waits for all, the longest wait.
    test
        Test data at the server, a name or a file; without it there is no accuracy.
    ready_timeout, probe_timeout, setup_timeout : seconds
        The longest wait for the nodes, for a probe, and for features and parity.
    in_flight : megabytes
        How much parity may be in transit at a time: the engine's database is slow with more.
    probes
        Messages used to measure each node before planning.
    availability
        Upper limit on the assumed share of rounds in which a node takes part.
    margin
        Safety factor on the measured times when the deadline is planned.
    tolerance
        Largest deviation of a gradient from the client's own parity, in expected errors.
    without
        Names of nodes to leave out from now on.
    scale
        Whether the nodes agree on means and spreads of their columns, by sums, and scale with them.
    points
        Number of points of a node, by its name: they count in full, and a node that reports
        another number is refused.
    classes
        Number of label columns; by default the largest number that nodes report.
    heaviest
        How many times the median a node's unstated points count at most; a node with more label
        columns than that is refused.
    fall
        How far accuracy or R² on the test points may fall below its best before the run stops.
    """

    clients: int = Field(ge=1)
    rounds: int = Field(10, ge=1, le=MAX_ROUNDS)
    deadline: float | None = Field(None, gt=0)
    test: str | None = None
    ready_timeout: float = Field(180.0, gt=0)
    probe_timeout: float = Field(120.0, gt=0)
    setup_timeout: float = Field(3600.0, gt=0)
    in_flight: float = Field(200.0, gt=0)
    probes: int = Field(5, ge=1)
    availability: float = Field(0.95, gt=0, le=1)
    margin: float = Field(1.5, ge=1)
    tolerance: float = Field(6.0, gt=0)
    without: list[str] = []
    scale: bool = False
    points: dict[str, PositiveInt] = {}
    classes: PositiveInt | None = None
    heaviest: float = Field(5.0, ge=1)
    fall: float = Field(0.1, gt=0)


class SchemeConfig(BaseModel):
    """A scheme and its settings; `features` overrides the experiment's kind.

    With `secure`, the server sees only sums of answers, no single answer.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    features: FeatureKind | None = None
    secure: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything except the name."""
        return dict(self.model_extra or {})

    @property
    def plain_name(self) -> str:
        """The scheme's own name, also where it is given as ``module:Class``."""
        return scheme_class(self.name).info.name

    @property
    def label(self) -> str:
        """A label that distinguishes settings of one scheme."""
        return self.labelled(self.plain_name)

    def labelled(self, name: str) -> str:
        """Return the label with a name for the scheme."""
        settings = self.settings
        code = " ".join(str(settings.pop(key)) for key in ("code", "nonzeros") if key in settings)
        words = [
            f"{100 * value:.4g}%"
            if key in ("redundancy", "drop") and isinstance(value, int | float)
            else f"{key.replace('_', ' ')} {value}"
            for key, value in settings.items()
        ]
        words += [word for word in (code, self.features, self.secure and "secure sums") if word]
        return ", ".join([" ".join([name, *words[:1]]), *words[1:]])

    def scheme(self) -> Scheme:
        """Return the scheme."""
        return make_scheme(self.name, self.settings, secure=bool(self.secure))


class Experiment(ConfigTable):
    """Everything that a run depends on.

    The defaults work for any table: they are those of the estimators, and the only scheme is one
    that needs no step.
    """

    title: str = ""
    seeds: list[Seed] = Field([0], min_length=1)
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    features: FeaturesConfig = FeaturesConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    schemes: list[SchemeConfig] = [SchemeConfig(name="coded-newton")]
    grid: dict[str, Annotated[list[bool | int | float | str], Field(min_length=1)]] = {}
    federation: FederationConfig | None = None

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is listed twice; remove one")
        return seeds

    @model_validator(mode="before")
    @classmethod
    def _raw_points(cls, document: Any) -> Any:
        """Give a network the points as they are, where no features are asked for."""
        model = document.get("model") if isinstance(document, dict) else None
        kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
        features = document.get("features", {}) if kind == "torch" else None
        if not isinstance(features, dict) or "kind" in features:
            return document
        return document | {"features": features | {"kind": "identity"}}

    @field_validator("grid", mode="before")
    @classmethod
    def _flat(cls, grid: Any) -> Any:
        """Let ``fleet.erasure`` stand without quotes, which TOML takes for a table in the table."""
        if not isinstance(grid, dict):
            return grid
        tables = {key: table for key, table in grid.items() if isinstance(table, dict)}
        nested = {f"{key}.{name}": v for key, table in tables.items() for name, v in table.items()}
        return {key: values for key, values in grid.items() if key not in tables} | nested

    def feature_map(
        self,
        seed: int | None = None,
        scheme: SchemeConfig | None = None,
        image: tuple[int, int, int] | None = None,
    ) -> FeatureMap:
        """Return the feature map of a scheme: its own kind, or the experiment's.

        Parameters
        ----------
        seed, scheme
            By default the first.
        image
            Height, width and channels of the data's images, if known.
        """
        config = self.features
        kind = (scheme or self.schemes[0]).features or config.kind
        seed = self.seeds[0] if seed is None else seed
        if kind == "encoder":
            return feature_map(kind, 1, 1.0, seed, encoder=self.encoder())
        if self.data.text is not None:
            raise InputError(
                f"data.text is {self.data.text!r}, and features.kind is {kind!r}, which takes "
                "numbers: choose features.kind = 'encoder'"
            )
        tiles = config.tiles(image)
        return feature_map(kind, config.n_components, config.known_sigma, seed, tiles)

    def encoder(self) -> Encoder | None:
        """Return the encoder that `features.encoder` names; None where it names none."""
        config = self.features
        if config.encoder is None:
            return None
        encoder = load_encoder(
            config.encoder,
            text=self.data.text is not None,
            normalise=config.normalise,
            operations=config.operations,
        )
        if not encoder.digest:
            encoder.macs(1)  # refuses a function whose operations are not given, before any work
        return encoder

    def _with_features(self, **changes: Any) -> "Experiment":
        return self.model_copy(update={"features": self.features.model_copy(update=changes)})

    def with_sigma(self, sigma: float) -> "Experiment":
        """Return the experiment with a σ, if it is to be chosen from the data."""
        return self._with_features(sigma=sigma) if self.features.sigma == "auto" else self

    def with_whole_paths(self) -> "Experiment":
        """Return the experiment with the full path of an ONNX file, for another process."""
        name = self.features.encoder
        if name is None or not name.endswith(".onnx"):
            return self
        return self._with_features(encoder=str(Path(name).resolve()))

    def with_image(self, image: tuple[int, int, int] | None) -> "Experiment":
        """Return the experiment with the shape of the data's images, if it uses patches."""
        kind = self.schemes[0].features or self.features.kind
        if kind != "patches" or self.features.image is not None or image is None:
            return self
        return self._with_features(image=image)

    def schedule(
        self, features: FeatureMap, points: npt.NDArray[np.float32] | None = None
    ) -> Schedule:
        """Return the step sizes on these features; `points` are all points, if known."""
        config = self.training
        step = config.step
        if step == "auto" and self.model.kind != "linear":
            step = STEP_OF_NETWORKS
        elif step == "auto":
            step = safe_step(features, config.ridge, points)
        return Schedule(step, config.decay, tuple(config.decay_epochs))

    def deal(self, labels: npt.NDArray[Any], clients: int, seed: int) -> list[IntArray]:
        """Return which points each client has, according to the partition."""
        kind, concentration = self.data.partition, self.data.concentration
        return partition(labels, clients, kind, concentration=concentration, seed=seed)

    def build_schemes(self) -> dict[str, Scheme]:
        """Return the schemes by their labels."""
        if not self.schemes:
            raise InputError("schemes: there is none; add a [[schemes]] table")
        tables = [config.model_dump() for config in self.schemes]
        if any(table in tables[:k] for k, table in enumerate(tables)):
            raise InputError("schemes: two have the same name and settings; remove one")
        labels = distinct_labels([config.label for config in self.schemes], tables)
        return {label: config.scheme() for label, config in zip(labels, self.schemes, strict=True)}


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def distinct_labels(labels: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels; where two are the same, with the values in which their settings differ.

    Labels are for people: each must tell its setting from the others in the same run.

    Examples
    --------
    >>> distinct_labels(["coded 10%", "coded 10%"], [{"redundancy": 0.1}, {"redundancy": 0.1001}])
    ['coded 10% (redundancy 0.1)', 'coded 10% (redundancy 0.1001)']
    """
    flat = [flattened(values) for values in settings]
    distinct = []
    for label, mine in zip(labels, flat, strict=True):
        alike = [other for other, name in zip(flat, labels, strict=True) if name == label]
        keys = dict.fromkeys(key for other in alike for key in other)
        words = [
            f"{key.rpartition('.')[2].replace('_', ' ')} {mine.get(key, 'by default')}"
            for key in keys
            if any(other.get(key) != mine.get(key) for other in alike)
        ]
        distinct.append(f"{label} ({', '.join(words)})" if len(alike) > 1 else label)
    return distinct
