"""Feature maps: what the clients train on in place of their raw data (section 3.1).

Clients receive a map's few settings, the seed among them, never its frequencies; an encoder they
have already.
"""

from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, FloatArray
from codedfedl.errors import InputError
from codedfedl.io.names import member_of, nearest
from codedfedl.learning.features.base import FeatureMap, Identity
from codedfedl.learning.features.encoder import Encoded, Encoder, encoder_of, load_encoder
from codedfedl.learning.features.fourier import RandomFourier, Semilinear, Structured
from codedfedl.learning.features.patches import Patches, Tiles
from codedfedl.learning.features.tangent import Tangent
from codedfedl.random import stream

__all__ = [
    "FEATURES",
    "FEATURE_KINDS",
    "Encoded",
    "Encoder",
    "FeatureMap",
    "Identity",
    "Patches",
    "RandomFourier",
    "Semilinear",
    "Structured",
    "Tangent",
    "Tiles",
    "encoder_of",
    "feature_map",
    "fingerprint",
    "load_encoder",
    "map_class",
    "map_settings",
    "safe_step",
    "same_map",
    "typical_sigma",
]

_ROWS_AT_ONCE = 512

FEATURES: dict[str, type[FeatureMap]] = {
    "fourier": RandomFourier,
    "structured": Structured,
    "semilinear": Semilinear,
    "patches": Patches,
    "identity": Identity,
}
"""Every kind of feature map that comes with the package, and is drawn from a seed."""

FEATURE_KINDS = (*FEATURES, "encoder", "tangent")
"""Every kind of feature map; ``module:Class`` is a user's own."""


def map_class(kind: str) -> type[FeatureMap]:
    """Return the class of a feature map that is drawn, or of a user's own ``module:Class``."""
    if kind in FEATURES:
        return FEATURES[kind]
    if ":" not in kind:
        raise InputError(f"features.kind is {kind!r}: {nearest(kind, FEATURE_KINDS)}")
    made: Any = member_of(kind, "the feature map")
    if not (isinstance(made, type) and is_dataclass(made)):
        raise InputError(f"the feature map {kind!r} is not a dataclass: make it a frozen one")
    for member in ("size", "macs", "transform", "largest_square", "shift_invariant"):
        if not hasattr(made, member):
            raise InputError(
                f"the feature map {kind!r} has no {member}: write the members of "
                "codedfedl.learning.features.FeatureMap"
            )
    return cast("type[FeatureMap]", made)


def feature_map(
    kind: str,
    n_components: int,
    sigma: float,
    seed: int,
    tiles: Tiles | None = None,
    encoder: Encoder | None = None,
) -> FeatureMap:
    """Return a feature map by its kind, one of `FEATURE_KINDS` or ``module:Class``.

    A map is made from those of `n_components`, `sigma`, `seed` and `tiles` that are its fields.
    Only ``encoder`` has an encoder, which is all that it needs.
    """
    if kind == "tangent":
        raise InputError(
            "features.kind is 'tangent', and there is no network: name the model file of one in "
            "features.network; the nodes of a federation do not take one yet"
        )
    if kind != "encoder":
        settings: dict[str, Any] = {"n_components": n_components, "sigma": sigma, "seed": seed}
        settings["tiles"] = tiles or Tiles()
        made: Any = map_class(kind)
        chosen = {
            field.name: settings[field.name] for field in fields(made) if field.name in settings
        }
        drawn: FeatureMap = made(**chosen)
        return drawn
    if encoder is None:
        raise InputError(
            "features.kind is 'encoder', and there is none: name an .onnx file or module:function "
            "in features.encoder"
        )
    return encoder


def map_settings(features: FeatureMap) -> dict[str, Any] | None:
    """Return the settings from which `feature_map` makes a map again; None if it does not."""
    if isinstance(features, Encoder):
        names = ("source", "text", "normalise", "operations", "digest")
        return {"kind": "encoder", **{name: getattr(features, name) for name in names}}
    if isinstance(features, Tangent):
        settings = ("n_components", "parts", "seed")
        return {"kind": "tangent", **{name: getattr(features, name) for name in settings}}
    made = type(features)
    kinds = {known: kind for kind, known in FEATURES.items()}
    kind = kinds.get(made, f"{made.__module__}:{made.__qualname__}")
    values: dict[str, Any] = {
        name: getattr(features, name, 1) for name in ("n_components", "sigma", "seed")
    }
    tiles = getattr(features, "tiles", Tiles())
    try:
        same = feature_map(kind, **values, tiles=tiles) == features
    except (InputError, TypeError):  # it cannot be imported, or has fields of its own
        return None
    return {"kind": kind, **values, "tiles": asdict(tiles)} if same else None


def components_for(points: int) -> int:
    """Return how many features so many points bear: a quarter of them, from 500 to 2,000.

    Parity has at most half as many rows as there are points, and should have more than features.
    """
    return min(max(points // 4, 500), 2000)


def typical_sigma(points: npt.NDArray[Any]) -> float:
    """Return a σ that suits the points: half the root mean square distance between two of them.

    It needs the columns' sums and sums of squares alone, which clients could add up. On MNIST it
    is 5.1, where the paper has 5. Points that are all the same have a σ of 1.
    """
    mean = points.mean(axis=0, dtype=np.float64)
    starts = range(0, len(points), _ROWS_AT_ONCE)
    squares = (((points[start : start + _ROWS_AT_ONCE] - mean) ** 2).sum() for start in starts)
    return float((sum(squares) / len(points) / 2) ** 0.5) or 1.0


def safe_step(features: FeatureMap, ridge: float, points: npt.NDArray[Any] | None = None) -> float:
    """Return a step size at which no mini-batch's gradient step diverges: 1/(R² + λ).

    R² is the largest squared norm of a mapped point, and no Hessian of a mean over points, however
    they are chosen, has a larger eigenvalue: a mini-batch or a client of one class is safe too. A
    step is stable up to 2/(R² + λ). Where the map itself bounds R², half the bound is taken, which
    for Fourier features is the mean: at the bound the step is still stable.

    Parameters
    ----------
    points : array of shape (n, d), optional
        All inputs, which only ``identity`` and an encoder that does not normalise need.
    """
    if isinstance(features, Encoder) and features.normalise:
        return 1 / (1 + ridge)  # every point has the length 1
    if np.isfinite(features.largest_square):
        return 1 / (features.largest_square / 2 + ridge)
    if points is None:
        raise InputError(
            "training.step is 'auto', which needs all data in one place where features are not "
            "bounded, as of 'identity': give a number, at most 1 over the largest squared norm of "
            "a point"
        )
    if isinstance(features, Encoder):
        return _step_for([features.remembered(points)], ridge)
    starts = range(0, len(points), _ROWS_AT_ONCE)
    mapped = (features.transform(points[start : start + _ROWS_AT_ONCE]) for start in starts)
    return _step_for(mapped, ridge)


def _step_for(mapped: Iterable[Array], ridge: float) -> float:
    largest = max(float((rows.astype(np.float64) ** 2).sum(axis=1).max()) for rows in mapped)
    return 1 / (largest + ridge) if largest + ridge > 0 else 1.0


def fingerprint(features: FeatureMap, inputs: int) -> FloatArray:
    """Return a few numbers that two machines share, up to rounding, if their maps are the same.

    They are the number of features, and signed sums over all features of three fixed points: a map
    that differs anywhere differs here. An encoder that takes texts has fixed texts instead: two
    that differ only in words that none of these has look the same.
    """
    if isinstance(features, Encoder):
        points = features.probes(inputs)
    else:
        points = stream(0, "subset", inputs).random((3, inputs))
    mapped = np.asarray(features.transform(points), dtype=np.float64)
    signs = 1 - 2 * stream(0, "subset", inputs, 1).integers(0, 2, (mapped.shape[1], 4))
    return np.append(mapped.shape[1], mapped @ signs)


def same_map(first: FloatArray, second: FloatArray) -> bool:
    """Say whether two fingerprints are those of one map, on machines that round differently."""
    comparable = first.shape == second.shape and first.ravel()[0] == second.ravel()[0]
    return bool(comparable and np.allclose(first, second, rtol=1e-3, atol=1e-3))
