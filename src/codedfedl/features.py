"""Feature maps: what the clients train on in place of their raw data (section 3.1).

Clients receive a map's few settings, the seed among them, never its frequencies.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, device

from codedfedl.errors import InputError
from codedfedl.fleet import FloatArray

__all__ = ["Array", "FeatureMap", "Identity", "RandomFourier", "feature_map"]

Array = Any  # an array of NumPy, PyTorch or CuPy

_ROWS_AT_ONCE = 4096


class FeatureMap(Protocol):
    """A map from raw points, shape (n, d), to features, shape (n, q)."""

    def size(self, inputs: int) -> int:
        """Return q for raw points of `inputs` numbers."""

    def macs(self, inputs: int) -> int:
        """Return the multiply-accumulates that one point costs."""

    def transform(self, points: Array) -> Array:
        """Map raw points to float32 features, on the same device."""


@dataclass(frozen=True)
class Identity:
    """The raw points themselves: linear regression, as in CFL."""

    def size(self, inputs: int) -> int:
        """Return d."""
        return inputs

    def macs(self, inputs: int) -> int:
        """Return 0."""
        return 0

    def transform(self, points: Array) -> Array:
        """Return the points as float32."""
        xp = array_namespace(points)
        return xp.astype(points, xp.float32, copy=False)


@dataclass(frozen=True)
class RandomFourier:
    """Random Fourier features of the RBF kernel exp(−‖x − y‖²/(2σ²)) (eq. rffm).

    The draws are scikit-learn's ``RBFSampler(gamma=1/(2σ²), random_state=seed)`` to the last bit.
    """

    n_components: int = 2000
    sigma: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_components < 1:
            raise InputError(f"n_components is {self.n_components}: must be at least 1")
        if not 0 < self.sigma < np.inf:
            raise InputError(f"sigma is {self.sigma:g}: must be finite and above 0")

    def size(self, inputs: int) -> int:
        """Return q."""
        return self.n_components

    def macs(self, inputs: int) -> int:
        """Return d·q."""
        return inputs * self.n_components

    def frequencies(self, inputs: int) -> tuple[FloatArray, FloatArray]:
        """Draw ω, shape (d, q), and δ, shape (q,)."""
        # RandomState's streams are frozen for ever: a seed means the same draws everywhere.
        random = np.random.RandomState(self.seed)
        gamma = 1 / (2 * self.sigma**2)
        omega = (2.0 * gamma) ** 0.5 * random.normal(size=(inputs, self.n_components))
        return omega, random.uniform(0, 2 * np.pi, size=self.n_components)

    def transform(self, points: Array) -> Array:
        """Return √(2/q)·cos(xω + δ), float32, a few thousand rows at a time."""
        xp = array_namespace(points)
        omega, delta = (
            xp.asarray(draws.astype(np.float32), device=device(points))
            for draws in self.frequencies(points.shape[1])
        )
        points = xp.astype(points, xp.float32, copy=False)
        features = xp.empty(
            (points.shape[0], self.n_components), dtype=xp.float32, device=device(points)
        )
        scale = (2.0 / self.n_components) ** 0.5
        for start in range(0, points.shape[0], _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            features[rows] = scale * xp.cos(points[rows] @ omega + delta)
        return features


def feature_map(kind: str, n_components: int, sigma: float, seed: int) -> FeatureMap:
    """Return a feature map by its name: ``fourier`` or ``identity``."""
    if kind == "fourier":
        return RandomFourier(n_components, sigma, seed)
    if kind == "identity":
        return Identity()
    raise InputError(f"features.kind is {kind!r}: must be 'fourier' or 'identity'")
