"""A network in a model file: the name of its module, its settings and a fingerprint, never code."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.learning.features import same_map
from codedfedl.learning.modules import MODULES
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.random import stream

__all__ = ["network_settings", "stored_network"]

_SETTINGS = ("module", "outputs", "objective", "image", "operations")
MAX_INPUTS = 1 << 24
"""Numbers of a point: a file may be anybody's, and a network is run on three points of it."""


def network_settings(network: TorchNetwork, weights: FloatArray) -> dict[str, Any]:
    """Return what a file says of a network with these parameters."""
    settings = {name: getattr(network, name) for name in _SETTINGS}
    return settings | {"fingerprint": _fingerprint(network, weights).tolist()}


def stored_network(
    how: Mapping[str, Any], inputs: int, weights: FloatArray, *, trust: bool
) -> TorchNetwork:
    """Return the network that a file describes, if it is the one that these parameters are of.

    Parameters
    ----------
    trust
        Whether a user's own module, which the file names, may be imported.
    """
    settings = {name: how[name] for name in _SETTINGS}
    if how["image"] is not None:
        settings["image"] = tuple(how["image"])
    module = settings["module"]
    if module not in MODULES and not trust:
        raise InputError(
            f"the model names the module {module}, which would be imported: read it, and if you "
            "trust it, use load_model(path, trust=True), or --trust"
        )
    if inputs > MAX_INPUTS:
        raise InputError(f"inputs is {inputs:,}: a network has at most {MAX_INPUTS:,}")
    network = TorchNetwork(inputs=inputs, **settings)
    count = network.counted_parameters if module in MODULES else network.parameters
    if weights.shape != (count,):
        raise InputError(
            f"weights has shape {weights.shape} where the module {module!r} has {count} "
            "parameters: use the module that it was trained with"
        )
    if not same_map(_fingerprint(network, weights), np.array(how["fingerprint"])):
        raise InputError(
            f"the module {module!r} is not the one that the model was trained with: its outputs "
            "differ; use that version of it"
        )
    return network


def _fingerprint(network: TorchNetwork, weights: FloatArray) -> FloatArray:
    """Return the number of parameters, and the outputs for three fixed points with random signs."""
    points = stream(0, "subset", network.inputs).random((3, network.inputs))
    scores = np.asarray(network.scores(weights, points), dtype=np.float64)
    signs = 1 - 2 * stream(0, "subset", network.inputs, 1).integers(0, 2, (scores.shape[1], 4))
    return np.append(network.parameters, scores @ signs)
