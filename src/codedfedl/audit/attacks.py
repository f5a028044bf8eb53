"""Membership scores: how much likelier the server's messages are with a record than without it.

There are two attackers. The attacker on canaries knows everything except the coins, as the proof of
a guarantee allows: what it cannot subtract from a sum are the canaries and the noise. The attacker
on real records knows the candidates, as a population, and nothing else about the data: it models a
sum of unknown points as Gaussian with their mean and covariance.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import linalg

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.audit.messages import (
    Contributions,
    ParityMessage,
    SumMessage,
    contributions,
    factors,
    known_sum,
)
from codedfedl.audit.records import Records, planted
from codedfedl.simulation.client_data import Problem

_ROUNDING_ERROR = 1e-5  # Sums in single precision have about this relative error.
_RIDGE_SHARE = 1e-6  # A covariance gets this share of its mean eigenvalue as a ridge.
_PRODUCT_RIDGE_SHARE = 0.05  # So does one that is estimated and assumed to be a product.


@dataclass(eq=False)
class _Attack(ABC):
    """Log-likelihood ratios, added up over messages.

    Attributes
    ----------
    scores : array of shape (k,)
    touched : array of shape (k,)
        Which records contributed to any message.
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

    def observe(self, message: SumMessage | ParityMessage) -> None:
        """Update the scores from a message, if any record contributes to it."""
        if isinstance(message, ParityMessage):
            which, weights = self._records_behind(message)
            if len(which):
                self._observe_parity(message, which, weights)
            return
        added = contributions(message, self.records, self.held)
        if len(added.which):
            self._observe_sum(message, added)

    @abstractmethod
    def _observe_sum(self, message: SumMessage, added: Contributions) -> None:
        """Score the records that contribute to a sum."""

    @abstractmethod
    def _observe_parity(self, message: ParityMessage, which: IntArray, weights: FloatArray) -> None:
        """Score the records behind some parity rows, which have these weights."""

    def _add(self, which: IntArray, ratios: FloatArray) -> None:
        self.scores[which] += ratios
        self.touched[which] = True

    def result(self) -> FloatArray:
        """Return the scores after all messages."""
        return self.scores

    def _records_behind(self, message: ParityMessage) -> tuple[IntArray, FloatArray]:
        """Return which records are behind some parity, and their weights.

        A point that is certain to arrive on its own has weight 0, and is left out.
        """
        records = self.records
        if message.batch is None:
            where, here = records.position, records.client == message.client
        else:
            where = records.index
            here = (records.client == message.client) & (records.batch == message.batch)
        which = np.flatnonzero(here & (where < len(message.weights)))
        which = which[message.weights[where[which]] > 0]
        return which, message.weights[where[which]]

    def _joined(self, which: IntArray) -> FloatArray:
        chosen = self.records.take(which)
        return np.concatenate([chosen.features, chosen.targets], axis=1).astype(np.float64)


class KnowsAllElse(_Attack):
    """An attacker who knows every record but those with a coin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        nobody = np.zeros(len(self.records), dtype=bool)
        self.blank = planted(self.problem, self.records, nobody)

    def _observe_sum(self, message: SumMessage, added: Contributions) -> None:
        left = message.values - known_sum(message, self.blank, self.seed)
        floor = _ROUNDING_ERROR * float(np.abs(message.values).max())
        variance = message.sigma**2 + floor**2
        self._add(added.which, _ratios_of_canaries(left, added, variance))

    def _observe_parity(self, message: ParityMessage, which: IntArray, weights: FloatArray) -> None:
        joined = self._joined(which)
        batches = self.blank.batches
        numbers = range(len(batches)) if message.batch is None else [message.batch]
        rows = [np.concatenate(batches[b].client(message.client), axis=1) for b in numbers]
        known = np.concatenate(rows)[: len(message.weights)].astype(np.float64)
        heavy = known * message.weights[:, None]
        unsure = joined * weights[:, None]
        covariance = heavy.T @ heavy + unsure.T @ unsure / 2
        self._add(which, _ratios_of_parity(message, joined, weights, covariance))


def _ratios_of_canaries(values: FloatArray, added: Contributions, variance: float) -> FloatArray:
    """Return the log-likelihood ratio of each canary in the unknown rest of a sum.

    Other canaries that are not orthogonal to it count as noise with their own variance.
    """
    half = added.rate / 2
    middle = (added.left * (half * added.weight)[:, None]).T @ added.right
    along = added.weight * np.einsum("ka,ab,kb->k", added.left, values - middle, added.right)
    products = (added.left @ added.left.T) * (added.right @ added.right.T)
    products *= np.outer(added.weight, added.weight)
    squares = np.diag(products).copy()
    along += half * squares
    others = products**2 @ (half * (1 - half)) - squares**2 * half * (1 - half)
    noise = variance + others / np.maximum(squares, 1e-300)
    exponent = (along - squares / 2) / noise
    return np.asarray(_mixture(exponent, added.rate))


def _mixture(exponent: FloatArray, rate: FloatArray | float) -> FloatArray:
    """Return log(1 − γ + γ·e^x): with chance γ a record is drawn."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-np.asarray(rate)), np.log(rate) + exponent))


def _ratios_of_parity(
    message: ParityMessage, joined: FloatArray, weights: FloatArray, covariance: FloatArray
) -> FloatArray:
    """Return log-likelihood ratios of records in parity rows, whose code is secret.

    Parameters
    ----------
    covariance : array of shape (q + c, q + c)
        Of the sum of the weighted points with random signs; a row has 1/u of it.
    """
    rows, code = message.values, message.code
    count = len(rows)
    ridge = _RIDGE_SHARE * np.trace(covariance) / len(covariance)
    root = linalg.cho_factor(covariance / count + ridge * np.eye(len(covariance)) / count)
    towards = linalg.cho_solve(root, joined.T)  # (q + c, k)
    nonzeros = code.operations(count)  # points behind each row
    chance, entry = nonzeros / count, nonzeros**-0.5
    along = rows @ towards * (weights * entry)
    square = (joined * towards.T).sum(1) * (weights * entry) ** 2
    if code.name == "gaussian":
        ratios = along**2 / (2 * (1 + square)) - np.log1p(square) / 2
    else:
        cosh = np.logaddexp(along, -along) - np.log(2)
        ratios = _mixture(cosh - square / 2, chance)
    return np.asarray(ratios.sum(0))


class KnowsThePopulation(_Attack):
    """An attacker who knows the candidates and their clients, but not which are included.

    Noiseless sums over the same points share their uncertainty, the unknown points, so their ratios
    are averaged. Noise is drawn anew for every sum, so those ratios add up. Without noise, the size
    of a ratio rests on an approximate covariance: it only ranks records, and is scaled to a
    standard deviation of 1 before it joins the ratios of parity.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plain, self._plain_count = np.zeros((2, len(self.records)))
        self._known_axes: dict[str, tuple[FloatArray, FloatArray, FloatArray]] = {}

    def _observe_sum(self, message: SumMessage, added: Contributions) -> None:
        clients = self.records.client[added.which]
        middle, spread = _expected(added, clients, message.loads)
        values, basis, squares = self._axes(message)
        within = added.right - _client_means(added.right, clients)
        others, axes = linalg.eigh(within.T @ within / len(within))
        variance = spread * np.outer(np.maximum(values, 0), np.maximum(others, 0))
        floor = _PRODUCT_RIDGE_SHARE * float(variance.mean()) + 1e-300
        precision = 1 / (variance + message.sigma**2 + floor)
        left = basis.T @ (message.values - middle) @ axes
        # A message farther off than the population explains means that the model is too confident.
        precision /= max(float((left**2 * precision).mean()), 1.0)
        right = (added.right @ axes) * added.weight[:, None]
        along = (added.left @ (basis @ (left * precision)) * right).sum(1)
        square = (squares[added.which] @ precision * right**2).sum(1)
        ratios = added.rate * along - added.rate * square / 2
        self._add(added.which, ratios * (message.sigma > 0))
        self._plain[added.which] += ratios * (message.sigma == 0)
        self._plain_count[added.which] += message.sigma == 0

    def result(self) -> FloatArray:
        """Return the scores after all messages."""
        plain = self._plain / np.maximum(self._plain_count, 1)
        return np.asarray(self.scores + plain / max(float(plain.std()), 1e-300))

    def _axes(self, message: SumMessage) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return variances and principal axes of the left factors, within clients.

        Also each record's squared components along them. They are the same in all rounds of a kind.
        """
        kind = message.work.kind
        if kind not in self._known_axes:
            left = factors(message.work, self.records, message.model)[0].astype(np.float64)
            within = left - _client_means(left, self.records.client)
            values, basis = linalg.eigh(within.T @ within / len(within))
            self._known_axes[kind] = values, basis, (left @ basis) ** 2
        return self._known_axes[kind]

    def _observe_parity(self, message: ParityMessage, which: IntArray, weights: FloatArray) -> None:
        within, means = self._population
        mean = means[message.client]
        covariance = (message.weights**2).sum() * (within + np.outer(mean, mean))
        ratios = _ratios_of_parity(message, self._joined(which), weights, covariance)
        self._add(which, ratios)

    @cached_property
    def _population(self) -> tuple[FloatArray, FloatArray]:
        """The candidates' covariance within clients, and each client's mean."""
        everybody, clients = self._joined(np.arange(len(self.records))), self.records.client
        centres = _client_means(everybody, clients)
        spread = everybody - centres
        means = np.zeros((len(self.held), everybody.shape[1]))
        means[clients] = centres
        return spread.T @ spread / len(spread), means


def _client_means(values: FloatArray, clients: IntArray) -> FloatArray:
    """Return the mean over the same client's records, for every record."""
    _, group = np.unique(clients, return_inverse=True)
    sums = np.zeros((group.max() + 1, values.shape[1]))
    np.add.at(sums, group, values)
    return np.asarray((sums / np.bincount(group)[:, None])[group])


def _expected(added: Contributions, clients: IntArray, loads: IntArray) -> tuple[FloatArray, float]:
    """Return the expected sum, and Σ w² of its points.

    Half of a client's candidates are missing from its points, on average.
    """
    middle, spread = np.zeros((added.left.shape[1], added.right.shape[1])), 0.0
    for j in np.unique(clients).tolist():
        its = clients == j
        present = max(float(loads[j]) - its.sum() / 2, 1.0) * float(added.rate[its][0])
        weight = float(added.weight[its][0])
        middle += present * weight / its.sum() * added.left[its].T @ added.right[its]
        spread += present * weight**2
    return middle, spread
