"""What a model file says of its model, checked: it may be anybody's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.names import shortened

__all__ = ["Facts", "checked_arrays", "read_facts"]

_AGAIN = "copy it again, or train it again"
_MOST = 2**31 - 1  # of inputs, features and seeds
_TILES = ("image", "patch", "stride", "pool")


@dataclass(frozen=True)
class Facts:
    """The facts of a model, as in `Model`; `features` are the settings of its feature map.

    `network` are those of a network that was trained on them; None means least squares.
    """

    features: Mapping[str, Any]
    network: Mapping[str, Any] | None
    inputs: int
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    temperature: float | None
    card: Mapping[str, Any]


def read_facts(facts: npt.NDArray[Any], card: npt.NDArray[Any] | None) -> Facts:
    """Return the facts of a model from two texts in JSON."""
    known = _table("facts", _parsed("facts", str(facts)))
    inputs = _whole("inputs", known.get("inputs"), 1)
    columns = _names("columns", known.get("columns"))
    if len(columns) not in (0, inputs):
        raise InputError(f"columns names {len(columns)} of {inputs} inputs: {_AGAIN}")
    warmth = known.get("temperature")
    return Facts(
        features=_map(known.get("features")),
        network=_network("network", known["network"]) if "network" in known else None,
        inputs=inputs,
        columns=columns,
        labels=_names("labels", known.get("labels")),
        temperature=None if warmth is None else _positive("temperature", warmth),
        card={} if card is None else _table("card", _parsed("card", str(card))),
    )


def checked_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], inputs: int, outputs: int | None = None
) -> dict[str, Any]:
    """Refuse arrays that do not fit each other: weights, classes, and scales of ins and outs.

    Parameters
    ----------
    outputs
        Of a network, whose weights are one array; those of a linear model have a column for each.
    """
    if "weights" not in arrays:
        raise InputError(f"it lacks weights: {_AGAIN}")
    weights = arrays["weights"]
    if outputs is None:
        if weights.dtype.kind != "f" or weights.ndim != 2 or not weights.shape[1]:
            raise InputError(
                f"weights holds {weights.dtype} of shape {weights.shape}, not floating point with "
                "a column for each output: train it again"
            )
        outputs = int(weights.shape[1])
    elif weights.dtype.kind != "f" or weights.ndim != 1:
        raise InputError(
            f"weights holds {weights.dtype} of shape {weights.shape}, not a network's parameters "
            "one after another: train it again"
        )
    sizes = dict.fromkeys(("low", "span", "center"), inputs)
    sizes |= dict.fromkeys(("classes", "offset", "scale"), outputs)
    for name in sizes.keys() & arrays.keys():
        array, kinds = arrays[name], "biufUS" if name == "classes" else "biuf"
        if array.shape != (sizes[name],) or array.dtype.kind not in kinds:
            raise InputError(
                f"{name} holds {array.dtype} of shape {array.shape} where {sizes[name]} values are "
                f"needed: {_AGAIN}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{name} is not finite: {_AGAIN}")
    if "span" in arrays and not (arrays["span"] > 0).all():
        raise InputError(f"span is not above 0: {_AGAIN}")
    return dict(arrays)


def _map(given: Any) -> dict[str, Any]:
    """Return the settings of a feature map, with values of the right types."""
    how = _table("features", given)
    if how.get("kind") == "encoder":
        names = ("source", "text", "normalise", "operations", "digest", "fingerprint")
        if missing := [name for name in names if name not in how]:
            raise InputError(f"features lacks {missing[0]}: {_AGAIN}")
        kinds = {"source": str, "digest": str, "text": bool, "normalise": bool}
        for name, kind in kinds.items():
            if not isinstance(how[name], kind):
                raise InputError(f"features.{name} is {shortened(how[name])}: {_AGAIN}")
        if how["operations"] is not None:
            _whole("features.operations", how["operations"], 0, 2**62)
        _numbers("features.fingerprint", how["fingerprint"])
        return how
    tiles = _table("features.tiles", how.get("tiles"))
    for name in tiles:
        if name not in _TILES:
            raise InputError(f"features.tiles has the unknown {shortened(name)}: {_AGAIN}")
        sides = tiles[name] if isinstance(tiles[name], list) else [tiles[name]]
        if name == "image" and tiles[name] is not None and len(sides) != 3:
            raise InputError(f"features.tiles.image is {shortened(sides)}: {_AGAIN}")
        if name != "image" and isinstance(tiles[name], list):
            raise InputError(f"features.tiles.{name} is {shortened(sides)}: {_AGAIN}")
        for side in sides if tiles[name] is not None else []:
            _whole(f"features.tiles.{name}", side, 1)
    return {
        "kind": _text("features.kind", how.get("kind")),
        "n_components": _whole("features.n_components", how.get("n_components"), 1),
        "sigma": _positive("features.sigma", how.get("sigma")),
        "seed": _whole("features.seed", how.get("seed"), 0, 2**32 - 1),
        "tiles": tiles,
    }


def _network(name: str, given: Any) -> dict[str, Any]:
    """Return the settings of a network, with values of the right types."""
    how = _table(name, given)
    image, operations = how.get("image"), how.get("operations")
    if image is not None:
        if not isinstance(image, list) or len(image) != 3:
            raise InputError(f"{name}.image is {shortened(image)}: {_AGAIN}")
        image = [_whole(f"{name}.image", side, 1) for side in image]
    if operations is not None:
        operations = _whole(f"{name}.operations", operations, 1, 2**62)
    _numbers(f"{name}.fingerprint", how.get("fingerprint"))
    return {
        "module": _text(f"{name}.module", how.get("module")),
        "objective": _text(f"{name}.objective", how.get("objective")),
        "outputs": _whole(f"{name}.outputs", how.get("outputs"), 1),
        "image": image,
        "operations": operations,
        "fingerprint": how["fingerprint"],
    }


def _parsed(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{name} is not JSON: {_AGAIN}") from None


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name} is {shortened(value)}, not a table: {_AGAIN}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} is {shortened(value)}, not a text: {_AGAIN}")
    return value


def _names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {shortened(value)}, not a list of names: {_AGAIN}")
    return tuple(_text(name, entry) for entry in value)


def _whole(name: str, value: Any, least: int, most: int = _MOST) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InputError(
            f"{name} is {shortened(value)}, not a whole number from {least} to {most}: {_AGAIN}"
        )
    return value


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not isfinite(value) or value <= 0:
        raise InputError(f"{name} is {shortened(value)}, not a number above 0: {_AGAIN}")
    return float(value)


def _numbers(name: str, value: Any) -> None:
    try:
        finite = bool(np.isfinite(np.array(value, dtype=np.float64)).all())
    except (TypeError, ValueError, OverflowError):
        finite = False
    if not finite:
        raise InputError(f"{name} is {shortened(value)}, not numbers: {_AGAIN}")
