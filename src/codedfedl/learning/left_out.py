"""Errors on rows of parity that a model was not fitted to, without fitting it again.

A fit is too close to every row that it has seen, by the row's leverage h: without the row, its
error there would be 1/(1 − h) times as large. The leverages of the largest rows, which count most,
are computed; those of the others are estimated from how much the fit follows noise.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import FloatArray, IntArray, asarray_like, to_host

if TYPE_CHECKING:
    from codedfedl.learning.sketching import Sketch

__all__ = ["LeftOut"]

_ENOUGH = 8192  # rows, to estimate a mean of squares to √(2/8192), 1.6%
_EXACT = 512  # rows whose leverage is computed
_DRAWS = 32  # of noise, for the others


class LeftOut:
    """The rows on which models are judged: all of a sketch, or every second, third, … of many.

    Fitted together with the targets is normal noise ε, with √ridge·δ added to X̃ᵀε. What the fit
    predicts in a row then has the variance h, what is left of ε the variance 1 − h, and they are
    independent. So the ratio of their sums over D draws is h/(1 − h) times an F-distributed number,
    whose mean is D/(D − 2) and whose mean square is D(D + 2)/((D − 2)(D − 4)).
    """

    def __init__(self, sketch: "Sketch") -> None:
        self.sketch = sketch
        self.rows = slice(None, None, max(1, sketch.rows // _ENOUGH))
        self.noise = np.random.default_rng(0).standard_normal((sketch.rows, _DRAWS))
        self.shift = np.random.default_rng(1).standard_normal((sketch.hessian.size, _DRAWS))

    def errors(self, ridges: FloatArray, power: int) -> FloatArray:
        """Return the squared errors of each fit over (1 − h)^power, summed over all rows.

        Parameters
        ----------
        power
            2 for the errors on rows that were left out, or 1.
        """
        sketch, columns = self.sketch, self.sketch.targets.shape[1]
        fits, fitted, leverages = columns + _DRAWS, [], []
        for ridge in ridges:
            turned = self._turned.copy()
            turned[:, columns:fits] += ridge**0.5 * self.shift
            divided = sketch.divided(turned, 1.0, float(ridge))
            fitted.append(divided[:, :fits])
            leverages.append((turned[:, fits:] * divided[:, fits:]).sum(0))
        predicted = sketch.predictions(sketch.turned_back(np.hstack(fitted)), self.rows)
        found = []
        for own, leverage in zip(np.hsplit(predicted, len(ridges)), leverages, strict=True):
            squares = ((sketch.targets[self.rows] - own[:, :columns]) ** 2).sum(1)
            inverse = self._inverse(own[:, columns:], power)
            inverse[self._largest] = np.maximum(1 - leverage, 1e-12) ** -power
            found.append((squares * inverse).sum() * sketch.rows / len(squares))
        return np.array(found)

    def _inverse(self, followed: FloatArray, power: int) -> FloatArray:
        """Estimate (1 − h)^−power of the rows, without bias."""
        left = ((self.noise[self.rows] - followed) ** 2).sum(1)
        odds = (followed**2).sum(1) / np.maximum(left, np.finfo(float).tiny)
        inverse = 1 + (_DRAWS - 2) / _DRAWS * odds  # as 1/(1 − h) is 1 + h/(1 − h)
        if power == 2:
            second = (_DRAWS - 2) * (_DRAWS - 4) / (_DRAWS * (_DRAWS + 2))
            inverse = 2 * inverse - 1 + second * odds**2
        return np.asarray(inverse)

    @cached_property
    def _largest(self) -> IntArray:
        x = self.sketch.features[self.rows]
        squares = to_host(array_namespace(x).linalg.vecdot(x, x))
        return np.argsort(-squares, kind="stable")[:_EXACT]

    @cached_property
    def _turned(self) -> FloatArray:
        """X̃ᵀỸ, X̃ᵀε and the largest rows, as columns in the sketch's basis."""
        x = self.sketch.features[self.rows]
        largest = array_namespace(x).take(x, asarray_like(self._largest, x), axis=0)
        moments = self.sketch.gathered(np.hstack([self.sketch.targets, self.noise]))
        return self.sketch.turned(np.hstack([moments, to_host(largest).T]))
