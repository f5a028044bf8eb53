"""A model in one `.npz` file: arrays and JSON, never a pickled object."""

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl import __version__
from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.io.archives import array_names, read_arrays
from codedfedl.io.files import replacing
from codedfedl.learning.features import (
    FEATURES,
    Encoder,
    FeatureMap,
    Tangent,
    Tiles,
    encoder_of,
    feature_map,
    fingerprint,
    map_settings,
    same_map,
)
from codedfedl.learning.modules import MODULES
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.models.facts import (
    DrawnMap,
    StoredEncoder,
    StoredNetwork,
    StoredTangent,
    checked_arrays,
    read_facts,
)
from codedfedl.models.model import Model
from codedfedl.random import stream

FORMAT = 1
_KIND = "codedfedl model"
_MOST_TEXT = 1 << 28  # bytes; a character has four
_FACTS = ("inputs", "columns", "labels", "temperature", "card", "preparation")
_OPTIONAL = ("classes", "low", "span", "center", "offset", "scale")
_NETWORK = ("module", "outputs", "objective", "image", "operations")
MAX_INPUTS = 1 << 24
"""Numbers of a point: a file may be anybody's, and a network is run on three points of it."""

Arrays = dict[str, npt.NDArray[Any]]


def save_model(model: Model, path: str | Path) -> None:
    """Write a model to an ``.npz`` file, with the versions and the date in its card."""
    path, settings = Path(path), map_settings(model.features)
    if settings is None:
        raise InputError(
            f"cannot write {path}: the feature map {type(model.features).__name__} is neither one "
            f"of the package's, which are {', '.join(FEATURES)}, nor a dataclass of a module that "
            "is made from n_components, sigma, seed and tiles alone"
        )
    if isinstance(model.features, Tangent):
        settings["network"] = _network_facts(model.features.learner, model.features.model)
    if isinstance(model.features, Encoder | Tangent):
        settings["fingerprint"] = fingerprint(model.features, model.inputs).tolist()
    versions = {"codedfedl": __version__, "numpy": np.__version__}
    versions["python"] = platform.python_version()
    card = {**model.card, "versions": versions}
    card.setdefault("created", datetime.now(UTC).isoformat(timespec="seconds"))
    facts = {
        "features": settings,
        "inputs": model.inputs,
        "columns": model.columns,
        "labels": model.labels,
        "temperature": model.temperature,
        "preparation": None if model.preparation is None else asdict(model.preparation),
    }
    if isinstance(model.learner, TorchNetwork):
        facts["network"] = _network_facts(model.learner, model.weights)
    optional = {name: getattr(model, name) for name in _OPTIONAL}
    if isinstance(model.features, Tangent):
        optional["tangent"] = model.features.model
    if model.classes is not None and all(isinstance(name, str) for name in model.classes):
        optional["classes"] = model.classes.astype(np.str_)
    arrays: Arrays = {
        "kind": np.array(_KIND),
        "format": np.array(FORMAT),
        "facts": np.array(json.dumps(facts)),
        "card": np.array(json.dumps(card)),
        "weights": np.asarray(model.weights),
        **{name: np.asarray(array) for name, array in optional.items() if array is not None},
    }
    if any(array.dtype.hasobject for array in arrays.values()):
        raise InputError(f"cannot write {path}: classes are neither numbers nor words; rename them")
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_model(path: str | Path, encoder: Any = None, *, trust: bool = False) -> Model:
    """Read a model that `save_model` or a run wrote.

    Parameters
    ----------
    encoder
        For a model that was trained on an encoder, which is not in the file: an ONNX file,
        ``module:function``, or a fitted transformer. It must be the same one. A file's word is
        never enough to import a module.
    trust
        Whether the module of a user's own feature map or network, which the file names, may be
        imported.

    Examples
    --------
    >>> model = load_model("runs/run/model.npz")  # doctest: +SKIP
    >>> model.predict(points)  # doctest: +SKIP
    """
    path = Path(path)
    texts = _read_texts(path)
    try:
        facts = read_facts(texts["facts"], texts.get("card"))
        if isinstance(facts.features, StoredTangent):
            features: FeatureMap = _tangent(facts.features, facts.inputs, path, trust=trust)
        else:
            features = _features(facts.features, encoder, facts.inputs, trust=trust)
        known = {name: getattr(facts, name) for name in _FACTS}
        held = read_arrays(path, ("weights", *_OPTIONAL))
        if facts.network is None:
            return Model(features=features, **known, **checked_arrays(held, facts.inputs))
        arrays = checked_arrays(held, facts.inputs, facts.network.outputs)
        size = features.size(facts.inputs)
        network = _network(facts.network, size, arrays["weights"], trust=trust)
        return Model(features=features, learner=network, **known, **arrays)
    except InputError as error:
        raise InputError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _features(
    how: DrawnMap | StoredEncoder, encoder: Any, inputs: int, *, trust: bool
) -> FeatureMap:
    """Return the feature map that a file describes, with the encoder that the user gives."""
    if isinstance(how, DrawnMap):
        if encoder is not None:
            raise InputError(f"the model has {how.kind} features: leave the encoder out")
        _check_trust(f"the feature map {how.kind}, whose module", trust or ":" not in how.kind)
        tiles = Tiles(**how.tiles.model_dump())
        return feature_map(how.kind, how.n_components, how.sigma, how.seed, tiles)
    if encoder is None:
        raise InputError(
            f"the model needs the encoder {how.source!r}, which is not in the file: give it "
            "with load_model(path, encoder=…), or --encoder"
        )
    known = encoder_of(encoder, text=how.text, normalise=how.normalise, operations=how.operations)
    wanted = np.array(how.fingerprint)
    if known.digest != how.digest or not same_map(fingerprint(known, inputs), wanted):
        raise InputError(
            f"the encoder {known.source!r} is not the one that the model was trained on, "
            f"{how.source!r}: its {'file' if how.digest else 'output'} differs"
        )
    return known


def _tangent(how: StoredTangent, inputs: int, path: Path, *, trust: bool) -> Tangent:
    """Return the tangent features of the network in a file."""
    model = read_arrays(path, ("tangent",)).get("tangent", np.zeros(0))
    network = _network(how.network, inputs, model, trust=trust)
    features = Tangent(network, model, how.n_components, how.parts, how.seed)
    if not same_map(fingerprint(features, inputs), np.array(how.fingerprint)):
        raise InputError("its tangent features differ from those it was trained on: train it again")
    return features


def _check_trust(what: str, trusted: bool) -> None:
    """Refuse to import what a file names, unless its user trusts it."""
    if not trusted:
        raise InputError(
            f"the model names {what} would be imported: read it, and if you trust it, use "
            "load_model(path, trust=True), or --trust"
        )


def _network(how: StoredNetwork, inputs: int, weights: FloatArray, *, trust: bool) -> TorchNetwork:
    """Return the network that a file describes, if it is the one that these parameters are of."""
    built_in = how.module in MODULES
    _check_trust(f"the module {how.module}, which", trust or built_in)
    if inputs > MAX_INPUTS:
        raise InputError(f"inputs is {inputs:,}: a network has at most {MAX_INPUTS:,}")
    network = TorchNetwork(inputs=inputs, **{name: getattr(how, name) for name in _NETWORK})
    count = network.counted_parameters if built_in else network.parameters
    if weights.shape != (count,):
        raise InputError(
            f"weights has shape {weights.shape} where the module {how.module!r} has {count} "
            "parameters: use the module that it was trained with"
        )
    if not same_map(_network_fingerprint(network, weights), np.array(how.fingerprint)):
        raise InputError(
            f"the module {how.module!r} is not the one that the model was trained with: its "
            "outputs differ; use that version of it"
        )
    return network


def _network_facts(network: Any, weights: FloatArray) -> dict[str, Any]:
    """Return what a file says of a network beside its parameters."""
    settings = {name: getattr(network, name) for name in _NETWORK}
    return settings | {"fingerprint": _network_fingerprint(network, weights).tolist()}


def _network_fingerprint(network: TorchNetwork, weights: FloatArray) -> FloatArray:
    """Return the number of parameters, and the outputs for three fixed points with random signs."""
    points = stream(0, "subset", network.inputs).random((3, network.inputs))
    scores = np.asarray(network.scores(weights, points), dtype=np.float64)
    signs = 1 - 2 * stream(0, "subset", network.inputs, 1).integers(0, 2, (scores.shape[1], 4))
    return np.append(network.parameters, scores @ signs)


def _read_texts(path: Path) -> Arrays:
    """Return what a file says of itself, if it is a model of a format that is known."""
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise InputError(f"cannot read {path}: {what}; a run leaves its model in model.npz")
    texts = read_arrays(path, ("kind", "format", "facts", "card"), _MOST_TEXT)
    if str(texts.get("kind")) != _KIND:
        held = ", ".join(array_names(path)[:5]) or "nothing"
        raise InputError(
            f"{path} is not a model (it holds {held}): give the model.npz of a run, or a file of "
            "its models folder"
        )
    written = texts.get("format")
    if written is None or written.shape or written.tolist() != FORMAT:
        raise InputError(
            f"{path} has the format {written} of another codedfedl, and {__version__} reads "
            f"format {FORMAT}: install that version, or train it again"
        )
    if "facts" not in texts:
        raise InputError(
            f"{path} is a model that lacks its facts: copy it again, or train it again"
        )
    return texts
