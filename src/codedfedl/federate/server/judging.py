"""Judge answers over time and against each other: find clients unusually far from their parity.

Every honest gradient is about one expected error away from its parity (`evidence.py`). The exact
factor is common to all clients: it grows when the model was fitted to the parity. So a distance is
measured in units of the round's median, and a client is an outlier if it exceeds both a fixed
multiple and five times the spread of the others. A single outlying answer is refused; if the
running mean exceeds the limit, all answers are refused until it has come down. Then the parity or
the answers are false, and the parity does not count either, if the model fits it much worse than
that of others, or if the mean exceeds the limit by more than the parity's randomness explains; thin
parity of an honest client has neither. The errors of
different sketches are independent, so answers that deviate in the same direction are refused too.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.federate.server.checks import low_median
from codedfedl.federate.server.evidence import Measured

_SINGLE, _LASTING = 1.45, 1.35  # medians that an answer, and the running mean, may always lie off
_SPREADS = 5.0  # so many median absolute deviations are allowed, too
_WIDEST = 1.6  # but never more medians than this
_CLOSE = 0.9  # share of the limit of the running mean from which a client is pointed out
_NEWEST = 0.25  # the weight of the newest answer in the running mean
_DOUBT = 3.0  # standard deviations of a length in u rows, √(2/u), before parity is doubted
_MISFIT = 1.5  # times the usual error, from which the model does not fit a client's parity
_FURTHEST = 4.0  # medians that an answer counts for at most in the running mean
_GROWTH_OF_MEDIAN = 1.15  # of the smallest so far: a model that is led astray counts for no more
_GROWTH = 1.3  # how much larger than its smallest so far an expected error may count
_UNSURE = 3.0  # no client's expected error counts for more, in medians at its size
_FEW_ROWS = 8  # of parity, from which an expected error is hardly known
_FEWEST = 4  # clients that are compared with each other
_ENOUGH = 8  # clients whose median is well known; with fewer, limits are wider in proportion
_CHANCE = 4.0  # standard deviations of the cosine
_ALIKE = 0.09  # cosine of two clients' errors, above the median pair's
_THIN = 12  # rows of parity, from which errors have few directions to lie in
_SUSPECT = 1.15  # running mean from which a client is named where accuracy falls


@dataclass
class Judge:
    """What is known of the clients' honesty.

    Attributes
    ----------
    held
        Points of every client.
    means : array of shape (n,)
        The running mean of each client's distances, in units of the round's median; NaN: none yet.
    errors : array of shape (n,)
        The smallest expected error of each client so far.
    calmest
        The smallest median distance of a round so far.
    slack
        Factor that widens the limits if parity has too few rows to judge by.
    misfits : array of shape (n,)
        Each client's last expected error, in units of the usual one for as many points.
    doubt
        How many times the limit the running mean must be to refute parity that the model fits.
    compared
        How many clients were compared in the last round.
    """

    held: Sequence[int]
    means: FloatArray
    errors: FloatArray
    misfits: FloatArray
    calmest: float = np.inf
    slack: float = 1.0
    doubt: float = 1.0
    compared: int = 0

    @property
    def lasting_limit(self) -> float:
        """The running mean beyond which all answers are refused; ∞: too few to compare."""
        if self.compared < _FEWEST:
            return np.inf
        return self._slack * _limit(self.means[~np.isnan(self.means)].tolist(), _LASTING)

    @property
    def close_to_refused(self) -> list[int]:
        """Clients whose running mean exceeds the limit, or is close to it."""
        close = np.nan_to_num(self.means, nan=0.0) > _CLOSE * self.lasting_limit
        return [int(j) for j in np.flatnonzero(close)]

    @property
    def contradicting(self) -> frozenset[int]:
        """Clients whose parity does not count, since their answers contradict it.

        Where they are the majority, nobody can say who lies.
        """
        factor = np.where(self.misfits > _MISFIT, 1.0, self.doubt)
        beyond = np.nan_to_num(self.means, nan=0.0) > factor * self.lasting_limit
        if 2 * beyond.sum() > (~np.isnan(self.means)).sum():
            return frozenset()
        return frozenset(np.flatnonzero(beyond).tolist())

    @property
    def _slack(self) -> float:
        """By how much limits are wider for few clients, and for few rows of parity."""
        return self.slack * max(1.0, _ENOUGH / self.compared)

    @classmethod
    def of(cls, held: Sequence[int]) -> "Judge":
        """Begin without any knowledge."""
        n = len(held)
        return cls(held, np.full(n, np.nan), np.full(n, np.inf), np.ones(n))

    def distances(self, measured: Mapping[int, Measured]) -> dict[int, float]:
        """Return how many expected errors each client's answer lies off.

        An expected error grows with the residuals, so a client that misleads the model could lie
        more and more. Hence it counts as at most `_GROWTH` times its smallest value so far. It also
        counts as at most `_UNSURE` times the usual error for as many points, so that no client can
        widen its limits by parity with large rows. The power of the points with which it grows
        depends on the code; the larger one counts.
        """
        if not measured:
            return {}
        usual = self._usual({j: answer.error for j, answer in measured.items()})
        distances = {}
        for j, answer in measured.items():
            most = _UNSURE * usual[j]
            distances[j] = answer.off / min(answer.error, most, _GROWTH * float(self.errors[j]))
            self.errors[j] = min(self.errors[j], answer.error)
        self.slack = _slack(measured, _FEW_ROWS)
        self.doubt = 1 + _DOUBT * float(np.sqrt(2 / _median_rows(measured)))
        return distances

    def _usual(self, errors: Mapping[int, float]) -> dict[int, float]:
        """Return the usual error for as many points as each client has; note the misfits."""
        points = {j: float(max(self.held[j], 1)) for j in errors}
        medians = {
            power: low_median([error / points[j] ** power for j, error in errors.items()])
            for power in (0.5, 1.0)
        }
        usual = {j: max(m * points[j] ** power for power, m in medians.items()) for j in errors}
        for j, error in errors.items():
            self.misfits[j] = error / usual[j]
        return usual

    def recall(self, distances: Mapping[int, float], errors: Mapping[int, float]) -> None:
        """Restore the findings of an earlier round."""
        if errors:
            self._usual(errors)
        for j, error in errors.items():
            self.errors[j] = min(self.errors[j], error)
        self.hear(distances)

    def hear(self, distances: Mapping[int, float]) -> dict[int, str]:
        """Add the distances of a round; return the clients to refuse, and why."""
        if not distances:
            return {}
        median = max(1.0, low_median(list(distances.values())))
        self.calmest = min(self.calmest, median)
        median = min(median, _GROWTH_OF_MEDIAN * self.calmest)
        ratios = {j: distance / median for j, distance in distances.items()}
        for j, ratio in ratios.items():
            before, now = self.means[j], min(float(ratio), _FURTHEST)
            self.means[j] = now if np.isnan(before) else before + _NEWEST * (now - before)
        self.compared = len(distances)
        if len(distances) < _FEWEST:  # nobody to compare with: what is left is the tolerance
            return {}
        single = self._slack * _limit(list(ratios.values()), _SINGLE)
        lasting = self.lasting_limit
        refused = {}
        for j, ratio in ratios.items():
            if ratio > single:
                refused[j] = (
                    f"gradient lies {distances[j]:.3g} times its expected error from the client's "
                    f"parity, {ratio:.3g} times as far as others ({single:.3g} at most)"
                )
            elif self.means[j] > lasting:
                refused[j] = (
                    f"gradients lie {self.means[j]:.3g} times as far from the client's parity as "
                    f"those of others on average ({lasting:.3g} at most)"
                )
        return refused


def intolerable(measured: Mapping[int, Measured], tolerance: float) -> dict[int, str]:
    """Return the clients too far from their parity, whatever the others sent, and why."""
    return {
        j: f"gradient lies {answer.distance:.3g} times its expected error from the client's parity"
        for j, answer in measured.items()
        if not answer.distance <= tolerance
    }


def coherent(
    measured: Mapping[int, Measured], overlap: Callable[[int, int], float]
) -> dict[int, str]:
    """Return the clients whose answers deviate together, and why they are refused.

    The errors of two sketches are independent: in many dimensions they are almost orthogonal. Lies
    that are meant to move the model add up, so they are not. A model that was fitted to the parity
    affects all clients alike, and so the median pair too.

    Parameters
    ----------
    overlap
        Returns the mean square of the cosine to be expected from the points of two clients: points
        of one class deviate in few directions.
    """
    clients = sorted(measured)
    if len(clients) < _FEWEST:
        return {}
    rows = np.array([measured[j].direction.ravel() for j in clients])
    cosines = rows @ rows.T
    first, second = np.triu_indices(len(clients), 1)
    alike = _ALIKE * _slack(measured, _THIN)
    limit = max(0.0, float(np.median(cosines[first, second]))) + alike
    refused: dict[int, str] = {}
    close = np.flatnonzero(cosines[first, second] > limit)
    for a, b in zip(first[close].tolist(), second[close].tolist(), strict=True):
        left, right = clients[a], clients[b]
        labels = _cosine(measured[left].spread, measured[right].spread)
        if cosines[a, b] > limit + _CHANCE * np.sqrt(overlap(left, right) * labels):
            why = (
                "gradient deviates from the client's parity in the same direction as another's "
                f"(cosine {cosines[a, b]:.2f})"
            )
            refused |= {left: why, right: why}
    return refused


def _cosine(left: FloatArray, right: FloatArray) -> float:
    """Return tr AB/(tr A·tr B), the mean square of a cosine for two covariances."""
    return float((left * right).sum() / max(np.trace(left) * np.trace(right), 1e-300))


def suspects_of(judge: Judge) -> list[int]:
    """Return the clients that are further off than most, the furthest first."""
    means = np.nan_to_num(judge.means, nan=0.0)
    return [int(j) for j in np.argsort(-means, kind="stable") if means[j] > _SUSPECT]


def _limit(ratios: Sequence[float], always: float) -> float:
    """Return the largest ratio that is not an outlier."""
    middle = float(np.median(ratios))
    spread = float(np.median(np.abs(np.asarray(ratios) - middle)))
    return float(np.clip(middle + _SPREADS * spread, always, max(_WIDEST, always)))


def _slack(measured: Mapping[int, Measured], few: int) -> float:
    """Return the factor that widens a limit when parity has few rows."""
    return 1 + (few / _median_rows(measured)) ** 2


def _median_rows(measured: Mapping[int, Measured]) -> float:
    return float(np.median([answer.rows for answer in measured.values()]))


_ROUNDS = 3  # in which accuracy must be low, one after the other


class Watch:
    """Stops a run whose accuracy on the test points falls, unless absent clients explain it.

    With shards sorted by class, a model forgets the classes of clients that do not answer. The
    accuracy may therefore fall further by the share of points that are missing since its best
    round. A liar gains little by staying away: its own share.

    Parameters
    ----------
    fall
        How far below its best the accuracy may stay for a few rounds while nobody is missing.
    points : array of shape (n,)
        Points of each client.
    """

    def __init__(self, fall: float, points: IntArray) -> None:
        self.fall, self.points = fall, points
        self.best, self.last, self.low = -np.inf, np.nan, 0
        self._heard = np.zeros(len(points), dtype=bool)  # in the best round
        self._missing: deque[float] = deque(maxlen=_ROUNDS)  # a model needs rounds to recover, too

    def fell(self, metric: float, arrived: Mask) -> bool:
        """Take in a round's metric, and say whether it has been too low for too long.

        An R² that was never above 0 has nothing to lose.
        """
        if np.isnan(metric):
            return False
        self.last = metric
        if metric >= self.best:
            self.best, self._heard = metric, arrived.copy()
        missing = self.points[self._heard & ~arrived].sum() / self.points.sum()
        self._missing.append(float(missing))
        allowed = self.fall + max(self._missing)
        self.low = self.low + 1 if 0 < self.best > metric + allowed else 0
        return self.low >= _ROUNDS

    def alarm(self, suspects: Sequence[int], names: Sequence[str]) -> str:
        """Say what fell, and who is suspected."""
        named = [names[j] for j in suspects]
        blame = "no client's answers are further from its parity than others'"
        if named:
            blame = f"the answers of {', '.join(named)} are furthest from their parity"
        remedy = f"start again with federation.without={named}" if named else "try a smaller step"
        return (
            f"accuracy on the test points fell from {self.best:.4f} to {self.last:.4f} and stayed "
            f"low for {_ROUNDS} rounds: a client is lying, or the step is too large; {blame}: "
            f"{remedy}, or continue with a larger federation.fall"
        )
