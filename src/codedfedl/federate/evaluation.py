"""How good a model is on the server's own test points, where it has some."""

from typing import Any

import numpy as np

from codedfedl.data.dataset import chance_of
from codedfedl.data.loading import DATASET_NAMES, load_dataset
from codedfedl.data.scaling import UNSCALED, Scaling
from codedfedl.data.shards import Shard, read_shard
from codedfedl.learning.metrics import accuracy, r_squared
from codedfedl.runs.config import Experiment

__all__ = ["Evaluation"]


class Evaluation:
    """Test points and their features; reads the data at once, so that a wrong path is refused."""

    def __init__(self, experiment: Experiment) -> None:
        assert experiment.federation is not None
        name = experiment.federation.test
        self._features: Any = None
        self._shard: Shard | None = None
        if name in DATASET_NAMES:
            dataset = load_dataset(name)
            self._shard = Shard(dataset.test_inputs, dataset.test_labels)
        elif name is not None:
            self._shard = read_shard(name, experiment.data.label, experiment.data.text)
        self._map = experiment.feature_map(experiment.seeds[0], experiment.schemes[0])

    def facts(self) -> dict[str, float]:
        """Return how many test points there are, and what answering without inputs gives."""
        if self._shard is None:
            return {}
        labels = np.asarray(self._shard.labels)
        chance = chance_of(labels, self._shard.is_classification)
        return {"chance": chance, "test_points": float(len(labels))}

    def points(self) -> tuple[Any, Any] | None:
        """Return the test points and their labels, where there are some."""
        return None if self._shard is None else (self._shard.inputs, self._shard.labels)

    def metric(self, model: Any, scaling: Scaling = UNSCALED) -> float:
        """Return accuracy or R², on the scale that the clients have; NaN without test points."""
        if self._shard is None:
            return float("nan")
        if self._features is None:
            inputs = scaling.inputs(np.asarray(self._shard.inputs))
            points = inputs if self._shard.is_text else inputs.astype(np.float32)
            self._features = self._map.transform(points)
        predictions = (self._features @ model)[:, None, :]
        if self._shard.is_classification:
            return float(accuracy(predictions, np.asarray(self._shard.labels))[0])
        rows = np.arange(len(self._shard.labels))
        targets = scaling.targets(self._shard.targets(rows, model.shape[1]))
        return float(r_squared(predictions, targets)[0])
