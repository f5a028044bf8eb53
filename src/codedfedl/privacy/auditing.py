"""What guesses about records prove about ε: the statistics of an audit.

A fair coin decides for each of m records whether it is in a data set. An attacker who sees the
output of a mechanism guesses some of the coins. If the mechanism is (ε, δ)-DP, the number of right
guesses is dominated by a binomial with probability e^ε/(e^ε + 1), up to δ (Steinke, Nasr and
Jagielski 2023, Theorem 5.2): too many right guesses refute the ε. Nothing is assumed of how the
guesses came about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from scipy import stats

from codedfedl.arrays import FloatArray, Mask
from codedfedl.errors import InputError

__all__ = ["Guesses", "area", "epsilon_bound", "guess", "p_value", "true_positives"]

_LARGEST = 64.0  # an ε that no number of guesses refutes
_STEPS = 40


@dataclass(frozen=True)
class Guesses:
    """How many guesses an attack made, and how many were right.

    Attributes
    ----------
    records
        m, all that had a coin.
    made, right
        Guesses that were made; all others are abstentions.
    """

    records: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.records:
            raise InputError(
                f"{self.right} right guesses of {self.made} about {self.records} records: each "
                "must be at most the next"
            )


def guess(scores: FloatArray, included: Mask, count: int) -> Guesses:
    """Guess that the records with the highest scores were in, and those with the lowest were not.

    Parameters
    ----------
    count
        How many guesses to make, half of them each way. It must not depend on the scores.
    """
    half, order = count // 2, np.argsort(scores, kind="stable")
    right = included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum()
    return Guesses(len(scores), 2 * half, int(right))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of so many right guesses under (ε, δ)-DP.

    With B ~ Binomial(made, e^ε/(e^ε + 1)) it is P(B ≥ v) + 2·m·δ·max_i P(v − i ≤ B < v)/i.
    """
    chance = 1 / (1 + exp(-epsilon))
    beyond = float(stats.binom.sf(guesses.right - 1, guesses.made, chance))
    if delta == 0 or guesses.right == 0:
        return min(beyond, 1.0)
    below = stats.binom.pmf(np.arange(guesses.right - 1, -1, -1), guesses.made, chance)
    slack = float((np.cumsum(below) / np.arange(1, guesses.right + 1)).max())
    return min(beyond + 2 * guesses.records * delta * slack, 1.0)


def epsilon_bound(
    guesses: Guesses | Sequence[Guesses], delta: float, confidence: float = 0.95
) -> float:
    """Return the largest ε that the guesses refute; 0 where they refute none.

    Of several sets of guesses the best counts, and each has a share of the allowed error.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}: must lie between 0 and 1, such as 0.95")
    sets = [guesses] if isinstance(guesses, Guesses) else list(guesses)
    return max(_refuted(part, delta, (1 - confidence) / len(sets)) for part in sets)


def _refuted(guesses: Guesses, delta: float, error: float) -> float:
    low, high = 0.0, _LARGEST
    if guesses.made == 0 or p_value(guesses, 0.0, delta) >= error:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(guesses, middle, delta) < error else (low, middle)
    return low


def area(scores: FloatArray, included: Mask) -> float:
    """Return the area under the ROC curve: 0.5 is chance, 1 identifies all members."""
    ranks = stats.rankdata(scores)
    members, others = int(included.sum()), int((~included).sum())
    return float((ranks[included].sum() - members * (members + 1) / 2) / (members * others))


def true_positives(scores: FloatArray, included: Mask, false_positives: float = 1e-3) -> float:
    """Return the share of members above a threshold that few non-members are above."""
    others = np.sort(scores[~included])[::-1]
    allowed = int(false_positives * len(others))
    return float((scores[included] > others[allowed]).mean())
