"""Everything that a run depends on: an experiment, and what follows from its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from codedfedl.arrays import IntArray
from codedfedl.data import Dataset, partition
from codedfedl.data.loading import DATASET_NAMES
from codedfedl.data.partitions import shards_by_name
from codedfedl.errors import InputError
from codedfedl.learning.features import (
    Encoder,
    FeatureMap,
    Identity,
    Tangent,
    feature_map,
    load_encoder,
    safe_step,
)
from codedfedl.learning.optimisers import Schedule
from codedfedl.models.files import load_model
from codedfedl.runs.federation_sections import FederationConfig, ServerConfig
from codedfedl.runs.sections import (
    DataConfig,
    FeaturesConfig,
    FleetConfig,
    ModelConfig,
    SchemeConfig,
    Section,
    TrainingConfig,
    is_table,
)
from codedfedl.schemes import Scheme

STEP_OF_NETWORKS = 0.003
"""A usual step of Adam; plain descent can take thirty times as much."""

USUAL_CLIENTS = 30
"""Clients of a built-in fleet where neither the data nor the experiment say how many."""

USUAL_RIDGE = 1e-4
"""λ where neither the experiment nor the number of a table's points says it."""

TABLE_EXCESS = 0.02
"""Of `coded-newton` on a table: of what is left unexplained, 20% would be more than the signal."""

UNKNOWN_POINTS = 2000
"""Points that features are chosen for where nobody knows how many there will be."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as NumPy's RandomState takes it


class Experiment(Section):
    """Everything that a run depends on.

    The defaults work for any table: they are those of the estimators, and the only scheme is one
    that needs no step.

    Attributes
    ----------
    title
        What the report calls it.
    seeds
        Each draws its own fleet, partition, features, codes and delays.
    grid
        Values of keys, every combination of which is run.
    """

    title: str = ""
    seeds: list[Seed] = Field([0], min_length=1)
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    features: FeaturesConfig = FeaturesConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    schemes: list[SchemeConfig] = Field([SchemeConfig(name="coded-newton")])
    grid: dict[str, Annotated[list[bool | int | float | str], Field(min_length=1)]] = Field({})
    federation: FederationConfig | None = None
    server: ServerConfig | None = None

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is listed twice; remove one")
        return seeds

    @model_validator(mode="before")
    @classmethod
    def _usual_features(cls, document: Any) -> Any:
        """Give a network the points as they are, and a table its map and scheme, by default."""
        if not isinstance(document, dict):
            return document
        features = document.get("features", {})
        kind, name, text = (
            table.get(key) if isinstance(table, dict) else getattr(table, key, None)
            for table, key in (
                (document.get("model"), "kind"),
                (document.get("data"), "name"),
                (document.get("data"), "text"),
            )
        )
        table = is_table(name, text)
        if table and "schemes" not in document:
            document = document | {"schemes": [{"name": "coded-newton", "excess": TABLE_EXCESS}]}
        usual = "identity" if kind == "torch" else "semilinear" if table else None
        if usual is None or not isinstance(features, dict) or "kind" in features:
            return document
        return document | {"features": features | {"kind": usual}}

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
        points: int = UNKNOWN_POINTS,
    ) -> FeatureMap:
        """Return the feature map of a scheme: its own kind, or the experiment's.

        Parameters
        ----------
        seed, scheme
            By default the first.
        image
            Height, width and channels of the data's images, if known.
        points
            That are trained on, where the number of features follows from it.
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
        if kind == "tangent":
            network = load_model(config.network) if config.network else None
            if network is None:
                return feature_map(kind, 1, 1.0, seed)  # says what is missing
            if not isinstance(network.features, Identity):
                raise InputError(
                    f"features.network is {config.network!r}, which is not a network on raw "
                    "points: name the model.npz of a run with model.kind = 'torch'"
                )
            count, parts = config.components(points), config.parts
            return Tangent(network.learner, network.weights, count, parts, seed)
        tiles = config.tiles(image)
        return feature_map(kind, config.components(points), config.known_sigma, seed, tiles)

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

    def with_whole_paths(self, folder: Path = Path()) -> "Experiment":
        """Return the experiment with full paths, which began at a folder, for another process."""

        def whole(name: str) -> str:
            return str((folder / name).resolve())

        encoder, federation, server = self.features.encoder, self.federation, self.server
        test, tables = federation and federation.test, dict[str, Section]()
        if encoder is not None and encoder.endswith(".onnx"):
            tables["features"] = self.features.model_copy(update={"encoder": whole(encoder)})
        if federation is not None and test and test not in DATASET_NAMES:
            tables["federation"] = federation.model_copy(update={"test": whole(test)})
        if self.data.preparation is not None:
            prepared = whole(self.data.preparation)
            tables["data"] = self.data.model_copy(update={"preparation": prepared})
        if server is not None:
            paths = server.model_dump(include={"keys", "home", "database", "out"})
            paths = {key: whole(path) for key, path in paths.items() if path is not None}
            tables["server"] = server.model_copy(update=paths)
        return self.model_copy(update=tables)

    def with_image(self, image: tuple[int, int, int] | None) -> "Experiment":
        """Return the experiment with the shape of the data's images, if it uses that."""
        kind = self.schemes[0].features or self.features.kind
        uses = kind == "patches" or self.model.kind == "torch"
        if not uses or self.features.image is not None or image is None:
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
            step = safe_step(features, config.ridge or 0.0, points)
        return Schedule(step, config.decay, tuple(config.decay_epochs), self.descends)

    @property
    def descends(self) -> bool:
        """Whether steps along gradients are asked for, as in the paper, or all that there is."""
        training, other = self.training, self.model.kind != "linear" or self.federation is not None
        return training.step != "auto" or bool(training.decay_epochs) or other

    def clients(self, dataset: Dataset) -> int:
        """Return how many clients a built-in fleet has: as many as the data name, or 30."""
        named, given = dataset.clients, self.fleet.clients
        if named is None:
            return given or USUAL_CLIENTS
        if given not in (None, len(named)):
            raise InputError(
                f"fleet.clients is {given}, and data.client names {len(named)} clients with "
                "training points: leave fleet.clients out"
            )
        return len(named)

    def ridge(self, points: int) -> float:
        """Return λ for so many training points, per point."""
        if (given := self.training.ridge) is not None:
            return given
        return 1 / points if self.data.is_table else USUAL_RIDGE

    @property
    def for_new_clients(self) -> bool:
        """Whether λ is to be chosen for clients that are held out."""
        chosen = self.training.ridge is None and self.data.test == "clients"
        return chosen and self.model.kind == "linear"

    def deal(self, dataset: Dataset, clients: int, seed: int) -> list[IntArray]:
        """Return which points each client has: its own, or those of the partition."""
        if dataset.owners is not None:
            return shards_by_name(dataset.owners, seed)[1]
        kind, concentration = self.data.partition, self.data.concentration
        return partition(dataset.labels, clients, kind, concentration=concentration, seed=seed)

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
