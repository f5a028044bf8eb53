"""How much slower each client has become than its plan assumed, from the times of its answers.

A client with slow-down s takes s times as long as planned for everything: P(T ≤ t) = F(ℓ̃, t/s) with
the planned distribution F. An answer after t seconds is as likely as F gives to a time within 6% of
t/s; no answer by t has the probability 1 − F. Every round adds to the log-likelihood of
each s on a grid, and old ones fade, so that the estimate follows a client that changes again.
With a prior for which a factor of 4 is one standard deviation, the estimate is the posterior mean
of log s: of a client that never answers it lies well above the least s that explains its silence,
so that a deadline is soon long enough to hear it again. How likely an answer is by some time is the
mean over the posterior: of a silent client little is known, and a point estimate would weigh its
first answer far too much.

The estimate is exactly 1 unless another s is e⁶ times as likely: where delays are as planned, twice
the gain of a maximum-likelihood estimate is about χ² with one degree of freedom, so that a client
is taken for another than it is with a probability of about 0.0005. Compute and link are not told
apart: the load of a client hardly varies, so its rounds do not identify them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel

SLOWDOWNS: FloatArray = 2.0 ** (np.arange(-12, 31) / 6)
"""The slow-downs that are told apart: from 1/4 to 32, 12% from one to the next."""

_INDEX_OF_1 = 12  # where the grid has 1
_SLOWDOWN_EDGES: FloatArray = 2.0 ** (np.arange(-12.5, 31) / 6)  # halfway between them
_OUTLIER_PROBABILITY = 1e-4  # of a time that no slow-down explains
_NEGLIGIBLE_SHARE = 1e-4  # of the likeliest slow-down's probability
_SURE_LOG_LIKELIHOOD = 6.0  # of log-likelihood, which another slow-down must have over 1
_FADING_SHARE = 0.98  # of earlier evidence that a question leaves: a client's last 50 count
_LOG_PRIOR = -0.5 * np.log(SLOWDOWNS) ** 2 / np.log(4.0) ** 2


@dataclass(frozen=True, eq=False)
class Timings:
    """How long clients took for one question each, as the server saw it; arrays of shape (n,).

    Attributes
    ----------
    loads
        Points of the question; 0 where nothing was seen of a client.
    seconds
        From the question until the answer was there, or until the server stopped waiting.
    answered
        Whether the answer was there; otherwise it took longer than `seconds`.
    """

    loads: IntArray
    seconds: FloatArray
    answered: Mask

    @classmethod
    def until(cls, loads: IntArray, seconds: FloatArray, arrived: Mask, length: float) -> "Timings":
        """Return the timings of a wait of some length: who has not arrived by then took longer."""
        return cls(loads, np.where(arrived, seconds, length), arrived)


@dataclass(frozen=True, eq=False)
class Drift:
    """What is known of the clients' slow-downs.

    Attributes
    ----------
    planned
        The delays that the plan assumes.
    evidence : array of shape (slow-downs, n)
        The log-likelihood of each slow-down in `SLOWDOWNS`, up to a constant of the client.
    """

    planned: DelayModel
    evidence: FloatArray

    @classmethod
    def unknown(cls, planned: DelayModel) -> "Drift":
        """Nothing was seen yet: all is as planned."""
        return cls(planned, np.zeros((len(SLOWDOWNS), len(planned.client))))

    def after(self, timings: Timings | None) -> "Drift":
        """Return what is known after some more answers, or their absence."""
        if timings is None or not timings.loads.any():
            return self
        seen = np.flatnonzero(timings.loads)
        seconds = np.maximum(timings.seconds[seen], 1e-9) / _SLOWDOWN_EDGES[:, None]
        by_then = self.planned.take(seen).cdf(timings.loads[seen], seconds)
        late = 1 - (by_then[:-1] + by_then[1:]) / 2
        likelihood = np.where(timings.answered[seen], by_then[:-1] - by_then[1:], late)
        evidence = self.evidence.copy()
        evidence[:, seen] *= _FADING_SHARE
        evidence[:, seen] += np.log(np.maximum(likelihood, 0) + _OUTLIER_PROBABILITY)
        return Drift(self.planned, evidence)

    @property
    def slowdowns(self) -> FloatArray:
        """The slow-down of each client, 1 where nothing else is much likelier, shape (n,)."""
        return np.exp(np.log(SLOWDOWNS) @ self.chances)

    @property
    def chances(self) -> FloatArray:
        """The probability of each slow-down, shape (slow-downs, n)."""
        likely = self.evidence + _LOG_PRIOR[:, None]
        best = likely.max(axis=0)
        chances = np.exp(likely - best)
        chances[chances < _NEGLIGIBLE_SHARE] = 0.0
        chances[:, best - likely[_INDEX_OF_1] <= _SURE_LOG_LIKELIHOOD] = (
            np.arange(len(SLOWDOWNS))[:, None] == _INDEX_OF_1
        )
        return np.asarray(chances / chances.sum(axis=0))

    @property
    def common(self) -> float:
        """The slow-down of all clients that may be as planned, as if they shared one.

        One answer says little about one client, and those of all together a lot.
        """
        alike = self.slowdowns == 1
        together = self.evidence[:, alike].sum(axis=1, keepdims=True)
        return float(Drift(self.planned, together).slowdowns[0])

    @property
    def as_planned(self) -> bool:
        """Whether no client differs significantly from its plan."""
        return bool((self.slowdowns == 1).all())

    @property
    def delays(self) -> DelayModel:
        """The delays as they are, as far as that is known: a mixture over the slow-downs."""
        return _Mixture(self.planned, self.chances)


@dataclass(frozen=True, eq=False)
class _Mixture(DelayModel):
    """Delays of clients whose slow-downs have some probabilities."""

    planned: DelayModel
    chances: FloatArray

    @property
    def client(self) -> npt.NDArray[Any]:  # type: ignore[override]
        return self.planned.client

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        seconds = np.asarray(t, dtype=np.float64)
        likely = np.flatnonzero(self.chances.any(axis=1))
        parts = (self.chances[k] * self.planned.cdf(loads, seconds / SLOWDOWNS[k]) for k in likely)
        return np.asarray(sum(parts))

    def take(self, clients: IntArray | slice) -> "_Mixture":
        return _Mixture(self.planned.take(clients), self.chances[:, clients])


def check_replan(scheme: str, rounds: int) -> None:
    """Raise unless `rounds` is a non-negative integer."""
    if rounds < 0 or rounds != int(rounds):
        raise InputError(
            f"{scheme}.replan is {rounds}: must be a whole number of rounds, or 0 to keep the plan"
        )
