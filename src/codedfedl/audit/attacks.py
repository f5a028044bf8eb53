"""Scores of records: how much likelier what the server received is with a record than without.

Two attackers. The one of canaries knows everything but the coins, as the proof of a guarantee
allows: what is left of a sum are the canaries and the noise. The one of real records knows the
candidates, as a population, and nothing else of the data: a sum of unknown points is Gaussian with
their mean and covariance.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import linalg

from codedfedl._types import FloatArray, IntArray, Mask
from codedfedl.audit.messages import Mixed, Parts, Summed, known_sum, parts
from codedfedl.audit.records import Records, planted
from codedfedl.learning.codes import Code
from codedfedl.simulation.problem import Problem

__all__ = ["KnowsAllElse", "KnowsThePopulation"]

_ROUNDING = 1e-5  # relative error of sums in single precision, where there is no noise
_RIDGE = 1e-6  # of the mean eigenvalue
_SHRINKAGE = 0.05  # the same, of covariances that are estimated and taken to be a product


@dataclass(eq=False)
class _Attack:
    """Log-likelihood ratios, added up over messages.

    Attributes
    ----------
    scores : array of shape (k,)
    touched : array of shape (k,)
        Which records had a part in any message.
    """

    problem: Problem
    records: Records
    seed: int
    scores: FloatArray = field(init=False)
    touched: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.scores = np.zeros(len(self.records))
        self.touched = np.zeros(len(self.records), dtype=bool)
        sizes = [np.diff(batch.offsets) for batch in self.problem.batches]
        self.held: IntArray = np.sum(sizes, axis=0)

    def _add(self, place: IntArray, ratios: FloatArray) -> None:
        self.scores[place] += ratios
        self.touched[place] = True

    def result(self) -> FloatArray:
        """Return the scores after all messages."""
        return self.scores

    def _mixed_places(self, message: Mixed) -> tuple[IntArray, FloatArray]:
        """Return which records are behind some parity, and their weights."""
        records = self.records
        if message.batch is None:
            where, here = records.position, records.client == message.client
        else:
            where = records.index
            here = (records.client == message.client) & (records.batch == message.batch)
        place = np.flatnonzero(here & (where < len(message.weights)))
        return place, message.weights[where[place]]

    def _joined(self, place: IntArray) -> FloatArray:
        some = self.records.some(place)
        return np.concatenate([some.features, some.targets], axis=1).astype(np.float64)


class KnowsAllElse(_Attack):
    """An attacker who knows every record but those with a coin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        nobody = np.zeros(len(self.records), dtype=bool)
        self.blank = planted(self.problem, self.records, nobody)

    def observe(self, message: Summed | Mixed) -> None:
        """Learn from a message."""
        if isinstance(message, Mixed):
            self._observe_parity(message)
            return
        found = parts(message, self.records, self.held)
        if not len(found.place):
            return
        left = message.values - known_sum(message, self.blank, self.seed)
        floor = _ROUNDING * float(np.abs(message.values).max())
        variance = message.sigma**2 + floor**2
        self._add(found.place, _ratios_of_canaries(left, found, variance))

    def _observe_parity(self, message: Mixed) -> None:
        place, weights = self._mixed_places(message)
        if not len(place):
            return
        joined = self._joined(place)
        batches = self.blank.batches
        which = range(len(batches)) if message.batch is None else [message.batch]
        rows = [np.concatenate(batches[b].client(message.client), axis=1) for b in which]
        known = np.concatenate(rows)[: len(message.weights)].astype(np.float64)
        heavy = known * message.weights[:, None]
        unsure = joined * weights[:, None]
        covariance = heavy.T @ heavy + unsure.T @ unsure / 2
        self._add(place, _ratios_of_parity(message, joined, weights, covariance))


def _ratios_of_canaries(values: FloatArray, found: Parts, variance: float) -> FloatArray:
    """Return log-likelihood ratios of canaries in what is left of a sum, each by itself.

    Those that a canary is not at right angles to count as noise of their own variance.
    """
    half = found.rate / 2
    middle = (found.left * (half * found.weight)[:, None]).T @ found.right
    along = found.weight * np.einsum("ka,ab,kb->k", found.left, values - middle, found.right)
    products = (found.left @ found.left.T) * (found.right @ found.right.T)
    products *= np.outer(found.weight, found.weight)
    squares = np.diag(products).copy()
    along += half * squares
    others = products**2 @ (half * (1 - half)) - squares**2 * half * (1 - half)
    noise = variance + others / np.maximum(squares, 1e-300)
    exponent = (along - squares / 2) / noise
    return np.asarray(_mixture(exponent, found.rate))


def _mixture(exponent: FloatArray, rate: FloatArray | float) -> FloatArray:
    """Return log(1 − γ + γ·e^x): with chance γ a record is drawn."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-np.asarray(rate)), np.log(rate) + exponent))


def _ratios_of_parity(
    message: Mixed, joined: FloatArray, weights: FloatArray, covariance: FloatArray
) -> FloatArray:
    """Return log-likelihood ratios of records in parity rows, whose code is secret.

    Parameters
    ----------
    covariance : array of shape (q + c, q + c)
        Of the sum of the weighted points, with signs by chance; a row has 1/u of it.
    """
    rows, code = message.values, message.code
    count = len(rows)
    ridge = _RIDGE * np.trace(covariance) / len(covariance)
    root = linalg.cho_factor(covariance / count + ridge * np.eye(len(covariance)) / count)
    towards = linalg.cho_solve(root, joined.T)  # (q + c, k)
    chance, entry = _entries(code, count)
    along = rows @ towards * (weights * entry)
    square = (joined * towards.T).sum(1) * (weights * entry) ** 2
    if code.name == "gaussian":
        one = along**2 / (2 * (1 + square)) - np.log1p(square) / 2
    else:
        cosh = np.logaddexp(along, -along) - np.log(2)
        one = _mixture(cosh - square / 2, chance)
    return np.asarray(one.sum(0))


def _entries(code: Code, rows: int) -> tuple[float, float]:
    """Return the chance that a point goes into a row, and by how much."""
    nonzeros = code.operations(rows)
    return nonzeros / rows, nonzeros**-0.5


class KnowsThePopulation(_Attack):
    """An attacker who knows candidates, and whose they would be, but not who is in.

    Sums without noise over the same points are uncertain by the same unknown points, so of their
    ratios the mean counts; noise is new in every sum, and ratios add up.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plain, self._plain_count = np.zeros((2, len(self.records)))
        self._bases: dict[tuple[str, int], tuple[FloatArray, FloatArray, FloatArray]] = {}
        self._within: FloatArray | None = None

    def observe(self, message: Summed | Mixed) -> None:
        """Learn from a message."""
        if isinstance(message, Mixed):
            self._observe_parity(message)
            return
        found = parts(message, self.records, self.held)
        if not len(found.place):
            return
        clients = self.records.client[found.place]
        lefts, middle, spread = _expected(found, clients, message.loads)
        key = (message.work.kind, len(found.place))
        values, basis, turned = self._basis(key, lefts, found)
        within = found.right - _client_means(found.right, clients)
        others, axes = linalg.eigh(within.T @ within / len(within))
        variance = spread * np.outer(np.maximum(values, 0), np.maximum(others, 0))
        floor = _SHRINKAGE * float(variance.mean()) + 1e-300
        precision = 1 / (variance + message.sigma**2 + floor)
        left = basis.T @ (message.values - middle) @ axes
        right = (found.right @ axes) * found.weight[:, None]
        along = np.einsum("ka,ab,kb->k", turned, left * precision, right, optimize=True)
        square = np.einsum("ka,ab,kb->k", turned**2, precision, right**2, optimize=True)
        ratios = found.rate * along - found.rate * square / 2
        self._add(found.place, ratios * (message.sigma > 0))
        self._plain[found.place] += ratios * (message.sigma == 0)
        self._plain_count[found.place] += message.sigma == 0

    def result(self) -> FloatArray:
        """Return the scores after all messages."""
        return np.asarray(self.scores + self._plain / np.maximum(self._plain_count, 1))

    def _basis(
        self, key: tuple[str, int], within: FloatArray, found: Parts
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the principal axes of the left factors: the same in all rounds of one kind."""
        if key not in self._bases or len(self._bases[key][2]) != len(found.left):
            values, basis = linalg.eigh(within.T @ within / len(within))
            self._bases = {key: (values, basis, found.left @ basis)}
        return self._bases[key]

    def _observe_parity(self, message: Mixed) -> None:
        place, weights = self._mixed_places(message)
        if not len(place):
            return
        everybody = self._joined(np.arange(len(self.records)))
        clients = self.records.client
        if self._within is None:
            spread = everybody - _client_means(everybody, clients)
            self._within = spread.T @ spread / len(spread)
        mean = everybody[clients == message.client].mean(0)
        covariance = (message.weights**2).sum() * (self._within + np.outer(mean, mean))
        self._add(place, _ratios_of_parity(message, everybody[place], weights, covariance))


def _client_means(values: FloatArray, clients: IntArray) -> FloatArray:
    """Return the mean over the same client's records, for every record."""
    _, own = np.unique(clients, return_inverse=True)
    sums = np.zeros((own.max() + 1, values.shape[1]))
    np.add.at(sums, own, values)
    return np.asarray((sums / np.bincount(own)[:, None])[own])


def _expected(
    found: Parts, clients: IntArray, loads: IntArray
) -> tuple[FloatArray, FloatArray, float]:
    """Return left factors less their client's mean, the expected sum, and Σ w² of its points.

    Half of a client's candidates are missing from its points, on average.
    """
    middle, spread = np.zeros((found.left.shape[1], found.right.shape[1])), 0.0
    for j in np.unique(clients).tolist():
        its = clients == j
        present = max(float(loads[j]) - its.sum() / 2, 1.0) * float(found.rate[its][0])
        weight = float(found.weight[its][0])
        middle += present * weight / its.sum() * found.left[its].T @ found.right[its]
        spread += present * weight**2
    return found.left - _client_means(found.left, clients), middle, spread
