"""What all nodes of a federation agree on, as the server tells it to them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from codedfedl.errors import InputError
from codedfedl.learning.features import FeatureMap, Tiles, feature_map, load_encoder

__all__ = ["Job"]


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
    encoder
        How the encoder is used, where the features are one's: `text` and `normalise`. Which it is
        never travels: each node has its own, and answers with a fingerprint.
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

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{32}", self.key):  # it becomes part of a path
            raise InputError(f"the federation's key is {self.key!r}: must be 32 hexadecimal digits")

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
