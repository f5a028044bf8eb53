"""One pure training step, the step-size schedule, and the metrics."""

from dataclasses import dataclass

from array_api_compat import array_namespace

from codedfedl.arrays import Array
from codedfedl.errors import InputError

__all__ = ["Schedule", "accuracy", "r_squared", "step", "telling_excess"]

_EXPLAINED = 0.1  # an excess is relative to what the optimum explains, if that is below ten times
_LEAST_SHARE = 1e-3  # the rest of the loss; but nothing is asked of data that explain nothing


@dataclass(frozen=True)
class Schedule:
    """Step sizes that fall at some epochs.

    Parameters
    ----------
    step
        The first step size (the paper's μ).
    decay
        What it is multiplied by at each of `decay_epochs`, counted from 0.
    """

    step: float = 6.0
    decay: float = 0.8
    decay_epochs: tuple[int, ...] = (40, 65)

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise InputError(f"training.step is {self.step:g}: must be above 0")
        if not 0 < self.decay <= 1:
            raise InputError(f"training.decay is {self.decay:g}: must be above 0 and at most 1")

    def at(self, epoch: int) -> float:
        """Return the step size of an epoch."""
        return self.step * self.decay ** sum(epoch >= when for when in self.decay_epochs)


def step(model: Array, total: Array, points: float, size: float, ridge: float) -> Array:
    """β − μ(g + λβ) with g = total/points (section 2.1), in as few passes as possible."""
    return (1 - size * ridge) * model - (size / points) * total


def accuracy(predictions: Array, classes: Array) -> Array:
    """Return the share of points whose largest prediction is their class, for many models.

    Parameters
    ----------
    predictions : array of shape (points, models, c)
    classes : array of shape (points,)

    Returns
    -------
    array of shape (models,), on the same device
    """
    xp = array_namespace(predictions)
    right = xp.argmax(predictions, axis=2) == classes[:, None]
    return xp.mean(xp.astype(right, xp.float32), axis=0)


def r_squared(predictions: Array, targets: Array) -> Array:
    """1 − residual over total variance, pooled over label columns, for many models.

    Parameters
    ----------
    predictions : array of shape (points, models, c)
    targets : array of shape (points, c)
    """
    xp = array_namespace(predictions)
    residual = xp.sum((predictions - targets[:, None, :]) ** 2, axis=(0, 2))
    total = xp.sum((targets - xp.mean(targets, axis=0)) ** 2)
    return 1 - residual / total


def telling_excess(excess: float, explained: float) -> float:
    """Return an excess over the optimum's loss, smaller where the optimum explains little.

    Where most of the loss is irreducible, an excess that is small beside it may be everything that
    can be learned.

    Parameters
    ----------
    explained
        How far the objective falls from no model to the optimum, relative to the optimum's.
    """
    return excess * min(1.0, max(_EXPLAINED * explained, _LEAST_SHARE))
