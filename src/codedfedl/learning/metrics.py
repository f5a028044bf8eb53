"""How good a model is: accuracy, R², and an excess over the optimum."""

from array_api_compat import array_namespace

from codedfedl.arrays import Array

ENOUGH_SHARE = 0.0025  # Of what the optimum explains: 99% of it are met with room to spare.
EXPLAINED_FACTOR = 0.1  # An excess is relative to a tenth of what the optimum explains, if less.
MIN_EXCESS_SHARE = 1e-3  # Data that explain nothing still allow this share of an excess.


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


def telling_excess(excess: float | None, explained: float) -> float:
    """Return an excess over the optimum's loss, smaller where the optimum explains little.

    Where most of the loss is irreducible, an excess that is small beside it may be everything that
    can be learned. With None it is a small share of what the optimum explains.

    Parameters
    ----------
    explained
        How far the objective falls from no model to the optimum, relative to the optimum's.
    """
    if excess is None:
        return ENOUGH_SHARE * max(explained, MIN_EXCESS_SHARE)
    return excess * min(1.0, max(EXPLAINED_FACTOR * explained, MIN_EXCESS_SHARE))
