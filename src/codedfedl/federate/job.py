"""What all nodes of a federation agree on, and what masks of a secure sum are bound to."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.client import work_to
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.learning.features import FeatureMap, Tiles, feature_map, load_encoder
from codedfedl.learning.learner import Learner, LeastSquares
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.privacy.fixed_point import Residues


@dataclass(frozen=True)
class Job:
    """What all nodes of a federation must agree on.

    Attributes
    ----------
    key
        The federation's own name, which names the cache folder.
    columns
        Label columns (c), once all nodes have said what they hold; 0 until then.
    tiles
        How images are cut into patches, where the feature map does that: `Tiles` as a mapping.
    scaling
        How inputs and targets are scaled, where the clients have agreed on that: `Scaling`.
    points
        How many of its points a node takes part with, drawn at random; 0: with all.
    model
        Module, loss and image of a network, as in `TorchNetwork`; empty for least squares.
    encoder
        How the encoder is used, where the features are one's: `text` and `normalise`. Which it is
        never travels: each node has its own, and answers with a fingerprint.
    words
        Names of the classes, sorted, where the nodes' tables have words for labels.
    """

    key: str
    kind: str
    n_components: int
    sigma: float
    seed: int
    batches: int
    columns: int = 0
    tiles: Mapping[str, Any] = field(default_factory=dict)
    scaling: Mapping[str, Any] = field(default_factory=dict)
    encoder: Mapping[str, bool] = field(default_factory=dict)
    points: int = 0
    model: Mapping[str, Any] = field(default_factory=dict)
    words: Sequence[str] = ()

    def learner(self, inputs: int) -> Learner:
        """Return what is trained, on points of so many features."""
        if not self.model:
            return LeastSquares(inputs, self.columns)
        image = self.model["image"] and tuple(self.model["image"])
        module, loss = self.model["module"], self.model["loss"]
        return TorchNetwork(module, inputs, self.columns, loss, image)

    def features(self, encoder: str | None = None) -> FeatureMap:
        """Return the feature map, with the encoder that the node itself names."""
        if self.kind != "encoder":
            tiles = Tiles(**self.tiles)
            return feature_map(self.kind, self.n_components, self.sigma, self.seed, tiles)
        if encoder is None:
            raise InputError(
                "the federation trains on the outputs of an encoder, and this node has none: start "
                "it with --encoder, an .onnx file or module:function"
            )
        text, normalise = self.encoder.get("text", False), self.encoder.get("normalise", True)
        return load_encoder(encoder, text=bool(text), normalise=bool(normalise))


HELPER = "helper"
"""The role that a helper names when it is greeted."""

MASKED = "masked"
"""The one array of an answer under a mask."""


def ask_digest(work: Work, model: npt.NDArray[Any] | None) -> str:
    """Return the hash of what is the same for all clients, for `Binding.ask`."""
    text = json.dumps(work_to(work.common), sort_keys=True).encode()
    sent = b"" if model is None else np.asarray(model, dtype="<f4").tobytes()
    return hashlib.sha256(hashlib.sha256(text).digest() + sent).hexdigest()


def in_one_row(arrays: Mapping[str, npt.NDArray[Any]]) -> Residues:
    """Return the integers of an answer in one row, in the order of their names."""
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])


def taken_apart(row: Residues, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Residues]:
    """Return the arrays that `in_one_row` has put together."""
    names = sorted(shapes)
    ends = np.cumsum([math.prod(shapes[name]) for name in names])
    parts = np.split(row, ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}
