"""What a model file says of its model, checked: it may be anybody's."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    Tag,
    TypeAdapter,
    ValidationError,
)

from codedfedl.data.tabular import Preparation
from codedfedl.errors import InputError
from codedfedl.io.names import shortened

_AGAIN = "copy it again, or train it again"

_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
_Operations = Annotated[int, Field(ge=0, le=2**62)]
_Positive = Annotated[FiniteFloat, Field(gt=0)]


class _Stored(BaseModel):
    """Values of exactly these types: in a file, 1 is not true, and '8' is not 8."""

    model_config = ConfigDict(strict=True, frozen=True)


class _StoredTiles(_Stored):
    model_config = ConfigDict(extra="forbid")

    image: tuple[_Count, _Count, _Count] | None = None
    patch: _Count | None = None
    stride: _Count | None = None
    pool: _Count | None = None


class DrawnMap(_Stored):
    """The settings of a feature map that is drawn from a seed."""

    kind: str
    n_components: _Count
    sigma: _Positive
    seed: _Seed
    tiles: _StoredTiles


class StoredEncoder(_Stored):
    """What is known of an encoder, which is not in the file."""

    kind: Literal["encoder"]
    source: str
    text: bool
    normalise: bool
    operations: _Operations | None
    digest: str
    fingerprint: list[FiniteFloat]


class StoredNetwork(_Stored):
    """The settings of a network."""

    module: str
    outputs: _Count
    objective: str
    image: tuple[_Count, _Count, _Count] | None = None
    operations: _Operations | None = None
    fingerprint: list[FiniteFloat]


class StoredTangent(_Stored):
    """The settings of tangent features, with the network whose parameters are in the file."""

    kind: Literal["tangent"]
    n_components: _Count
    parts: str | int
    seed: _Seed
    network: StoredNetwork
    fingerprint: list[FiniteFloat]


def _kind_of_map(features: Any) -> str:
    kind = features.get("kind") if isinstance(features, Mapping) else None
    return str(kind) if kind in ("encoder", "tangent") else "drawn"


_Map = Annotated[
    Annotated[DrawnMap, Tag("drawn")]
    | Annotated[StoredEncoder, Tag("encoder")]
    | Annotated[StoredTangent, Tag("tangent")],
    Discriminator(_kind_of_map),
]


class Facts(_Stored):
    """The facts of a model, as in `Model`; without a network it is linear in the features."""

    features: _Map
    network: StoredNetwork | None = None
    inputs: _Count
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    temperature: _Positive | None = None
    card: dict[str, Any] = {}
    preparation: Preparation | None = None


_FACTS, _CARD = TypeAdapter(Facts), TypeAdapter(dict[str, Any])


def read_facts(facts: npt.NDArray[Any], card: npt.NDArray[Any] | None) -> Facts:
    """Return the facts of a model from two texts in JSON."""
    known: Facts = _parsed("facts", _FACTS, facts)
    if (prepared := known.preparation) is not None:
        if prepared.inputs != known.inputs or known.columns != prepared.names:
            raise InputError(f"preparation does not fit the {known.inputs} inputs: {_AGAIN}")
    elif len(known.columns) not in (0, known.inputs):
        raise InputError(f"columns names {len(known.columns)} of {known.inputs} inputs: {_AGAIN}")
    held = {} if card is None else _parsed("card", _CARD, card)
    return known.model_copy(update={"card": held})


def _parsed(name: str, kind: TypeAdapter[Any], text: npt.NDArray[Any]) -> Any:
    """Return what a text holds, or say which value is not one that `save_model` writes."""
    try:
        return kind.validate_json(str(text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    parts = [str(part) for part in first["loc"] if part not in ("drawn", "encoder", "tangent")]
    where = ".".join(parts) or name
    if first["type"] == "missing":
        raise InputError(f"{where} is missing: {_AGAIN}")
    raise InputError(f"{where} is {shortened(first['input'])}, which no model has: {_AGAIN}")


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
    axes, wanted = 2, "floating point with a column for each output"
    if outputs is not None:
        axes, wanted = 1, "a network's parameters one after another"
    if weights.dtype.kind != "f" or weights.ndim != axes or not weights.shape[-1]:
        raise InputError(
            f"weights holds {weights.dtype} of shape {weights.shape}, not {wanted}: train it again"
        )
    width = weights.shape[-1] if outputs is None else outputs
    sizes = dict.fromkeys(("low", "span", "center"), inputs)
    sizes |= dict.fromkeys(("classes", "offset", "scale"), width)
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
