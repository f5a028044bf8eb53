"""Tangent features: how a trained network's outputs change with its parameters, where it stands.

The gradient of the outputs by the parameters is a feature map, and a linear model on it is what the
network could become by small changes of all its parameters at once (the neural tangent kernel of
Jacot et al., 2018; TCT, Yu et al., 2022, trains on it without a clock). For c outputs it would be c
gradients; a combination f(x)·a with fixed random signs a is one, and each class has weights of its
own on it. The part of the last layer, a ⊗ [h, 1], is then c copies of the last hidden layer h: one
times ‖a‖ has the same kernel. Only the other parameters' part is long, and is sketched.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.errors import InputError
from codedfedl.learning.features.base import drawn_like, floating
from codedfedl.learning.learner import Learner
from codedfedl.learning.modules import count_macs
from codedfedl.random import stream

__all__ = ["PARTS", "Tangent"]

PARTS = ("all", "last")
"""The parameters by which the gradient is taken; a number stands for so many last tensors."""
NUMBERS_AT_ONCE = 1 << 22
"""Of the gradients that exist at a time, before they are sketched."""


@dataclass(frozen=True)
class Tangent:
    """The gradient of a fixed random combination of a network's outputs, at unit length.

    It has [h, 1] as it is, where the last layer is linear, and after it a count sketch of the
    gradient by all other parameters: each is added, with a random sign, to one of the features
    left. It is not a kernel that is trained further: the network stays where it is.

    Parameters
    ----------
    learner
        The network (`TorchNetwork`).
    model : array of shape (p,)
        Its parameters, in float32 on the host.
    n_components
        Number of features, unless the gradient has fewer; the last layer's are never sketched.
    parts
        ``all`` parameters, the ``last`` layer alone, or a number of last tensors of the module.
    seed
        Of the signs and the sketch.
    """

    learner: Learner
    model: FloatArray = field(compare=False, repr=False)
    n_components: int = 1000
    parts: str | int = "all"
    seed: int = 0
    digest: str = field(default="", init=False)

    largest_square: ClassVar[float] = 1.0
    shift_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        given = np.ascontiguousarray(self.model, dtype=np.float32)
        object.__setattr__(self, "model", given)
        object.__setattr__(self, "digest", hashlib.sha256(given.tobytes()).hexdigest())
        if not hasattr(self.learner, "point_gradients"):
            raise InputError(
                "tangent features are those of a network: set model.kind = 'torch', or name the "
                "file of a trained network"
            )
        if self.parts not in PARTS and not isinstance(self.parts, int):
            raise InputError(f"parts is {self.parts!r}: must be 'all', 'last' or a number")
        if given.shape != self.learner.shape or not np.isfinite(given).all():
            raise InputError(
                f"the network's parameters have shape {given.shape} or are not finite: give "
                f"finite numbers of shape {self.learner.shape}"
            )
        if self.sketched and self.n_components <= self.copied:
            raise InputError(
                f"n_components is {self.n_components}, and the last hidden layer alone has "
                f"{self.copied}: raise it, or choose parts = 'last'"
            )

    @property
    def inputs(self) -> int:
        """Numbers of a point."""
        return self.learner.inputs

    @property
    def hidden(self) -> int:
        """Units of the last hidden layer; 0 where the last layer is not linear."""
        return self._layer[0]

    @property
    def copied(self) -> int:
        """Features that are not sketched: [h, 1]."""
        return sum(self._layer)

    @cached_property
    def sketched(self) -> int:
        """Parameters before the last layer by which the gradient is taken."""
        last = self.copied * self.learner.outputs
        return sum(self.learner.tensor_sizes[self.skipped :]) - last

    @property
    def sent_numbers(self) -> int:
        """What clients are sent, so that they have the map."""
        return self.learner.parameters

    def size(self, inputs: int) -> int:
        """Return q."""
        return max(self.copied, min(self.n_components, self.copied + self.sketched))

    def macs(self, inputs: int) -> int:
        """Return what forward and back through the network takes, the sketch, and the length."""
        return self._gradient_macs + self.sketched + self.size(inputs)

    def transform(self, points: Array) -> Array:
        """Map points to features, some at a time."""
        given, count = floating(points), max(1, NUMBERS_AT_ONCE // self.learner.parameters)
        starts = range(0, max(len(given), 1), count)
        parts = [self._mapped(given[start : start + count]) for start in starts]
        return array_namespace(given).concat(parts, axis=0)

    @property
    def network_weights(self) -> FloatArray:
        """The linear model that predicts as the network does, shape (q, c); 0 if there is none.

        Its outputs are the network's over the length of the features.
        """
        weights = np.zeros((self.size(self.inputs), self.learner.outputs), np.float32)
        last = self.model[len(self.model) - self.copied * self.learner.outputs :]
        layer, bias = np.split(last, [self.hidden * self.learner.outputs])
        if self.hidden:
            weights[: self.hidden] = layer.reshape(self.learner.outputs, -1).T
            weights[self.hidden : self.copied] = bias if len(bias) else 0.0
        return weights  # type: ignore[return-value]

    def with_last_layer(self, weights: FloatArray) -> FloatArray:
        """Return the network with the last layer of a linear model, at the size of its own."""
        model, size = self.model.copy(), self.copied * self.learner.outputs
        given = np.append(weights[: self.hidden].T, weights[self.hidden : self.copied])
        before = model[len(model) - size :]
        model[len(model) - size :] = given * (np.linalg.norm(before) / np.linalg.norm(given))
        return model

    def _mapped(self, points: Array) -> Array:
        """Return [h, 1] and the sketch, divided by their length."""
        xp = array_namespace(points)
        if not len(points):
            return xp.zeros((0, self.size(self.inputs)), dtype=points.dtype)
        slopes = self._gradients(points)
        count = self.sketched
        parts = [slopes[:, :count] * drawn_like(self.signs, points)]
        if self.has_buckets:
            parts = [self._in_buckets(parts[0])]
        if self.hidden:
            row = slopes[:, count : count + self.hidden]  # of a ⊗ h
            ones = xp.ones_like(row[:, : self.copied - self.hidden])
            parts = [row / float(self.combination[0]), ones, *parts]
        features = xp.concat(parts, axis=1)
        lengths = xp.sqrt(xp.sum(features * features, axis=1, keepdims=True))
        return features / xp.where(lengths > 0, lengths, xp.ones_like(lengths))

    def _in_buckets(self, slopes: Array) -> Array:
        """Add every column to one feature: each has as many, give or take one."""
        buckets = self.size(self.inputs) - self.copied
        order = self.bucket_order
        xp, total = array_namespace(slopes), 0.0
        for first in range(0, len(order), buckets):
            columns = order[first : first + buckets]
            chosen = xp.take(slopes, asarray_like(columns, slopes), axis=1)
            if (lacking := buckets - len(columns)) > 0:
                empty = xp.zeros((len(slopes), lacking), dtype=slopes.dtype)
                chosen = xp.concat([chosen, empty], axis=1)
            total = total + chosen
        return total

    @property
    def has_buckets(self) -> bool:
        """Whether features are sums of several numbers of the gradient."""
        return self.size(self.inputs) < self.copied + self.sketched

    @property
    def bucket_order(self) -> IntArray:
        """The gradient's numbers, as they are dealt to one feature after the other, in turn."""
        return stream(self.seed, "tangent", 1).permutation(self.sketched)

    def _gradients(self, points: Array) -> Array:
        network: Any = self.learner
        model, direction = asarray_like(self.model, points), drawn_like(self.combination, points)
        return network.point_gradients(model, points, direction, self.skipped)

    @cached_property
    def _gradient_macs(self) -> int:
        network: Any = self.learner
        if network.operations is not None:
            return int(network.operations)
        point = np.zeros((1, self.inputs), np.float32)
        return int(count_macs(network.module, lambda: self._gradients(point)))

    @property
    def skipped(self) -> int:
        """How many of the network's first tensors are left as they are."""
        sizes = self.learner.tensor_sizes
        last = 1 + (self.copied > self.hidden)
        if self.parts == "all":
            return 0
        return max(0, len(sizes) - max(last, 0 if self.parts == "last" else int(self.parts)))

    @cached_property
    def _layer(self) -> tuple[int, int]:
        """Return the units of the last hidden layer, and 1 if the last layer has a bias."""
        sizes, width = self.learner.tensor_sizes, self.learner.outputs
        bias = int(len(sizes) > 1 and sizes[-1] == width)
        units, rest = divmod(sizes[-1 - bias], width)
        return (units, bias) if not rest and self._is_linear(units * width, bias) else (0, 0)

    def _is_linear(self, weights: int, bias: int) -> bool:
        """Whether the outputs are W·h + b, with so many weights: tried at a few points."""
        width = self.learner.outputs
        points = stream(0, "subset", self.inputs).random((3, self.inputs)).astype(np.float32)
        end = len(self.model) - bias * width
        offset = self.model[end:] if bias else np.zeros(width, np.float32)
        made = []
        for factor in (0.0, 1.0, 2.0):
            model = self.model.copy()
            model[end - weights : end] *= factor
            made.append(np.asarray(self.learner.scores(model, points)) - offset)
        zero, once, twice = made
        slack = 1e-4 * max(float(np.abs(once).max()), 1e-6)
        return bool(np.abs(zero).max() <= slack and np.allclose(twice, 2 * once, atol=10 * slack))

    @cached_property
    def combination(self) -> FloatArray:
        """Signs over √c, so that ‖a‖ = 1."""
        width = self.learner.outputs
        return np.asarray(stream(self.seed, "tangent").choice([-1.0, 1.0], width) / width**0.5)

    @cached_property
    def signs(self) -> FloatArray:
        """Of the numbers that are sketched."""
        return np.asarray(stream(self.seed, "tangent", 2).choice([-1.0, 1.0], self.sketched))
