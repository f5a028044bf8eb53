"""Everything that a run depends on: the tables of an experiment, with their defaults."""

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
from codedfedl.learning.optimisers import Schedule
from codedfedl.runs.labels import distinct_labels
from codedfedl.runs.settings import checked_scheme, table_key
from codedfedl.schemes import Scheme, scheme_class

__all__ = ["Experiment", "FederationConfig", "FleetConfig", "SchemeConfig"]


def _known_features(kind: str) -> str:
    if kind not in FEATURE_KINDS:
        raise ValueError(nearest(kind, FEATURE_KINDS))
    return kind


FeatureKind = Annotated[str, AfterValidator(_known_features)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as NumPy's RandomState takes it
_MOST_ROUNDS = 10_000_000


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Table):
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


class FleetConfig(_Table):
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


class FeaturesConfig(_Table):
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


class TrainingConfig(_Table):
    """Number of epochs and step sizes; a `step` of ``auto`` is the largest safe one: `safe_step`.

    With `objective`, the training objective of every scheme is recorded, not only of those that aim
    at its minimum; if it is false, of none, which saves the Gram matrix of all points.
    """

    epochs: int = Field(100, ge=1, le=_MOST_ROUNDS)
    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["auto"] = "auto"
    decay: float = Field(0.8, gt=0, le=1)
    decay_epochs: list[NonNegativeInt] = []
    ridge: float = Field(1e-4, ge=0, allow_inf_nan=False)
    target: float | None = Field(None, allow_inf_nan=False)
    objective: bool | None = None


class FederationConfig(_Table):
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
    rounds: int = Field(10, ge=1, le=_MOST_ROUNDS)
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
        shares = ("redundancy", "drop")  # what a percentage says by itself
        values = [
            f"{100 * value:.4g}%"
            if key in shares and isinstance(value, int | float)
            else f"{key.replace('_', ' ')} {value}"
            for key, value in self.settings.items()
            if key not in ("code", "nonzeros")
        ]
        code = [str(self.settings[key]) for key in ("code", "nonzeros") if key in self.settings]
        values += [word for word in (" ".join(code), self.features) if word]
        values += ["secure sums"] if self.secure else []
        return ", ".join([" ".join([name, *values[:1]]), *values[1:]])


class Experiment(_Table):
    """Everything that a run depends on.

    The defaults work for any table: they are those of the estimators, and the only scheme is one
    that needs no step.
    """

    title: str = ""
    seeds: list[Seed] = Field([0], min_length=1)
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    features: FeaturesConfig = FeaturesConfig()
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
        self, seed: int, scheme: SchemeConfig, image: tuple[int, int, int] | None = None
    ) -> FeatureMap:
        """Return the feature map of a scheme: its own kind, or the experiment's.

        Parameters
        ----------
        image
            Height, width and channels of the data's images, if known.
        """
        kind, config = scheme.features or self.features.kind, self.features
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
        how, text = self.features, self.data.text is not None
        if how.encoder is None:
            return None
        found = load_encoder(
            how.encoder, text=text, normalise=how.normalise, operations=how.operations
        )
        if not found.digest:
            found.macs(1)  # refuses a function whose operations are not given, before any work
        return found

    def with_sigma(self, sigma: float) -> "Experiment":
        """Return the experiment with a σ, if it is to be chosen from the data."""
        if self.features.sigma != "auto":
            return self
        features = self.features.model_copy(update={"sigma": sigma})
        return self.model_copy(update={"features": features})

    def with_whole_paths(self) -> "Experiment":
        """Return the experiment with the full path of an ONNX file, for another process."""
        name = self.features.encoder
        if name is None or not name.endswith(".onnx"):
            return self
        features = self.features.model_copy(update={"encoder": str(Path(name).resolve())})
        return self.model_copy(update={"features": features})

    def with_image(self, image: tuple[int, int, int] | None) -> "Experiment":
        """Return the experiment with the shape of the data's images, if it uses patches."""
        kind = self.schemes[0].features or self.features.kind
        if kind != "patches" or self.features.image is not None or image is None:
            return self
        features = self.features.model_copy(update={"image": image})
        return self.model_copy(update={"features": features})

    def schedule(
        self, features: FeatureMap, points: npt.NDArray[np.float32] | None = None
    ) -> Schedule:
        """Return the step sizes on these features; `points` are all points, if known."""
        how = self.training
        step = safe_step(features, how.ridge, points) if how.step == "auto" else how.step
        return Schedule(step, how.decay, tuple(how.decay_epochs))

    def deal(self, labels: npt.NDArray[Any], clients: int, seed: int) -> list[IntArray]:
        """Return which points each client has, according to the partition."""
        how = self.data
        return partition(labels, clients, how.partition, concentration=how.concentration, seed=seed)

    def build_schemes(self) -> dict[str, Scheme]:
        """Return the schemes by their labels."""
        given = self.schemes
        if not given:
            raise InputError("schemes: there is none; add a [[schemes]] table")
        if len({table_key(config) for config in given}) < len(given):
            raise InputError("schemes: two have the same name and settings; remove one")
        built = [checked_scheme(config.name, config.settings) for config in given]
        labels = distinct_labels(
            [config.label for config in given], [config.model_dump() for config in given]
        )
        return dict(zip(labels, built, strict=True))
