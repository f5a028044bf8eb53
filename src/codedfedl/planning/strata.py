"""Weights by class: for how many points each client answers, when it has embedded only some.

Client j has embedded k_j of its ℓ_j points, and its answer is a sum over these. Weighted by ℓ_j/k_j
it represents all points of this client, however few they are. But other clients hold points of the
same classes. With L_jc points of class c at client j, of which about k_jc = k_j·L_jc/ℓ_j are in its
answer, the answers weighted by v_j err by three independent parts, where a point's gradient is the
mean of its class, plus what is the client's own in this class (a share ρ of the variance within a
class), plus what is the point's own (variance 1):

    Σ_j k_j(v_j − 1)²  +  ρ·Σ_jc (v_j·k_jc − L_jc)²  +  Σ_c (Σ_j v_j·k_jc − N_c)²,   N_c = Σ_j L_jc

`represented_points` minimises this: v_j = ℓ_j/k_j where ρ is large or a class lives on one client,
and N_c/Σ_j k_jc where clients are alike within their classes and hold one each. All points of a
client have the same weight, so that no answers can be combined to one over few points of a class.

Of a regression, a class is a stratum of the target: its sign, and its size to a factor of four.
"""

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray, to_host

__all__ = [
    "count_strata",
    "represented_points",
    "sampling_excess",
    "shift_within",
    "strata",
    "strata_of",
    "trusted_points",
]

LEAST_WITHIN = 0.05
"""Share of a class's variance that is within clients, at least, where it is estimated."""

MINORITY = 5
"""One in so many clients may lie."""

HEAVIEST = 3
"""That minority weighs no more than one in so many points."""

SIZES = 16
"""Strata of the size of a target, of each sign: from 4⁻⁸ to 4⁸."""


def strata(columns: int) -> int:
    """Return how many strata there are for targets with this many columns."""
    return columns if columns > 1 else 2 * SIZES


def strata_of(targets: Array) -> IntArray:
    """Return the stratum of every point, shape (k,): its class, or sign and size of its target.

    Examples
    --------
    >>> strata_of(np.array([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [1, 0]
    """
    values = np.nan_to_num(to_host(targets).astype(np.float64))
    if values.shape[1] > 1:
        return np.asarray(values.argmax(axis=1))
    with np.errstate(divide="ignore"):
        size = np.floor(np.log2(np.abs(values[:, 0])) / 2)
    return np.asarray(np.clip(size, -SIZES // 2, SIZES // 2 - 1) + SIZES // 2, dtype=np.int64) + (
        SIZES * (values[:, 0] > 0)
    )


def count_strata(targets: Array) -> FloatArray:
    """Return how many points lie in each stratum, shape (s,)."""
    counts = np.bincount(strata_of(targets), minlength=strata(targets.shape[1]))
    return counts.astype(np.float64)


def represented_points(
    counts: FloatArray,
    points: IntArray,
    shift: float = 0.0,
    most: FloatArray | None = None,
) -> FloatArray:
    """Return v_j·k_j, for how many points each client's answer counts, shape (n,).

    Parameters
    ----------
    counts : array of shape (n, s)
        L_jc, all points of each client by stratum.
    points : array of shape (n,)
        k_j, those that its answer is over.
    shift
        ρ.
    most : array of shape (n,), optional
        What no answer may count for more than; others then make up for it.
    """
    share = points / np.maximum(counts.sum(1), 1.0)
    seen = counts * share[:, None]
    unseen = counts - seen
    noise = np.where(points > 0, points + shift * (seen**2).sum(1), 1.0)
    inside, missing = shift * (seen * unseen).sum(1), unseen.sum(0)
    more = _more(seen, inside, missing, noise)
    if most is not None:
        limit = np.where(points > 0, np.maximum(most / np.maximum(points, 1) - 1, 0.0), np.inf)
        fixed = more > limit
        while (more > limit).any():
            fixed |= more > limit
            left, rest = np.where(fixed, 0.0, seen.T).T, missing - limit[fixed] @ seen[fixed]
            more = np.where(fixed, limit, _more(left, np.where(fixed, 0.0, inside), rest, noise))
    return np.asarray(points * (1 + more))


def _more(
    seen: FloatArray, inside: FloatArray, missing: FloatArray, noise: FloatArray
) -> FloatArray:
    """Return v_j − 1: (D + KKᵀ)⁻¹ by Woodbury's identity, with as many columns as strata."""
    wanted = inside + seen @ missing
    small = np.eye(seen.shape[1]) + seen.T @ (seen / noise[:, None])
    more = wanted - seen @ np.linalg.solve(small, seen.T @ (wanted / noise))
    return np.asarray(np.maximum(more / noise, 0.0))


def trusted_points(held: IntArray) -> FloatArray:
    """Return for how many points each client may count, where some may lie, shape (n,).

    For its own, and for more only as far as a fifth of the clients, whichever these are, or one of
    fewer than ten, stays within a third of all points.
    """
    few = max(len(held) // MINORITY, 1)
    largest = np.sort(held)[::-1][:few].astype(np.float64)
    before = np.cumsum(largest) - largest
    room = (held.sum() / HEAVIEST - before) / np.arange(few, 0, -1)
    return np.asarray(np.maximum(held, room.min()), dtype=np.float64)


def sampling_excess(
    held: FloatArray,
    embedded: IntArray,
    features: float,
    counts: FloatArray | None = None,
    shift: float = 0.0,
) -> float:
    """Return the relative excess when some points of each client stand for all of them.

    The first two parts of the error above cost as much for each feature, over the points squared;
    losing a client costs no more than its share. The third is of one direction a class: a class of
    which a share δ is missing costs δ² of its share of the points.

    Parameters
    ----------
    held, embedded : arrays of shape (n,)
        Points of each client.
    counts : array of shape (n, s), optional
        Its points by stratum, for weights by class; by default each client stands for itself.
    shift
        ρ.
    """
    total = held.sum()
    weight, share = features / total**2, held / total
    if counts is None:
        noise = weight * held * (held / np.maximum(embedded, 1) - 1)
        return float(np.where(embedded > 0, np.minimum(noise, share), share).sum())
    counted = represented_points(counts, embedded, shift)
    mix = counts / np.maximum(held, 1.0)[:, None]
    noise = held + counted * (counted / np.maximum(embedded, 1) - 2)
    noise = noise + shift * (mix**2).sum(1) * (counted - held) ** 2
    classes, short = counts.sum(0), counted @ mix - counts.sum(0)
    lost = (short**2 / np.maximum(classes, 1.0)).sum() / total
    return float(np.minimum(weight * noise, share).sum() + lost)


def shift_within(
    sums: FloatArray,
    seen: FloatArray,
    squares: float,
    noise: FloatArray | None = None,
    mix: FloatArray | None = None,
) -> float:
    """Return ρ, estimated from each client's sums over its points of each class.

    It is DerSimonian and Laird's moment estimate, over all classes together.

    Parameters
    ----------
    sums : array of shape (n, c, q)
        Σ x of each client and class.
    seen : array of shape (n, c)
        The points in each sum.
    squares
        Σ‖x‖² over all of them.
    noise : array of shape (n, c), optional
        The variance of each sum; by default that of its points.
    mix : array of shape (n, s), optional
        Shares of each client's points that explain its sum, where classes are strata of one.
    """
    parts = []  # of every class: what is between clients, what chance is in it, and room for ρ
    for column in range(seen.shape[1]):
        known = seen[:, column] > 0
        size = seen[known, column][:, None]
        means = sums[known, column] / size**0.5
        common = _basis(size**0.5 * (np.ones_like(size) if mix is None else mix[known]))
        free = 1 - (common**2).sum(1)
        between = (means**2).sum() - ((common.T @ means) ** 2).sum()
        variance = None if noise is None else noise[known, column] / size[:, 0]
        inside = (means**2).sum() if variance is None else between
        chance = free.sum() if variance is None else free @ variance
        parts.append([between, chance, free @ size[:, 0], inside, size.sum(), known.sum()])
    between, chance, room, inside, points, cells = np.sum(parts, axis=0)
    if noise is None:
        within = (squares - inside) / max(points - cells, 1.0)
        chance *= within
    else:
        pooled = [
            max((sums[:, k].sum(0) ** 2).sum() - noise[:, k].sum(), 0.0) / max(seen[:, k].sum(), 1)
            for k in range(seen.shape[1])
        ]
        whole = (squares - sum(pooled)) / max(points, 1.0)  # with what is between clients
        within = max(whole - max(between - chance, 0.0) / max(room, 1e-300), LEAST_WITHIN * whole)
    if not within > 0 or not room > 0:
        return 0.0
    return float(max(between - chance, 0.0) / (room * within))


def _basis(columns: FloatArray) -> FloatArray:
    """Return an orthonormal basis of what some columns span."""
    vectors, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(vectors[:, sizes > 1e-9 * max(sizes.max(initial=0.0), 1e-300)])
