"""The plan of a cold start: when the set-up ends, how long rounds last, and how many there are.

Before any data are seen, two effects predict the relative excess of the ridge objective:

- *sampling*. Client j stands for its ℓ_j points with k_j of them, each ℓ_j/k_j times as heavy. That
  costs q·Σ ℓ_j(ℓ_j/k_j − 1)/m², and for a client never more than its share ℓ_j/m of all points.
  Where the clients' counts of each class are known, it costs less (`planning.strata`).
- *mixing*. Parity of u rows determines q numbers up to θ = q/u. The best ridge regression on it is
  off by θ/(1 + θ), sampling included; each time that all clients have answered, √θ of what is above
  the sampling is left, as in any method that is preconditioned by a sketch.

Both take the effective dimension to be q, which it approaches when the ridge is small. More set-up
lessens both; rounds lessen the second alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.costs import BlockSetup, embedded_by
from codedfedl.fleet.delays import DelayParameters
from codedfedl.planning.secure_rounds import with_helper
from codedfedl.planning.strata import sampling_excess

__all__ = ["ColdStart", "best_cold_start", "plan_cold_start", "plan_embedding"]

_BUDGET_COUNT, _DEADLINE_COUNT = 48, 24  # how fine the grids are
_LEAST_PROGRESS = 0.02  # of a round, which damping allows however little parity there is
_NEVER_ROUNDS = 10**9
_UNLUCKY_RATIO = 3.0  # to the mean: with α = 2, one processor in a thousand takes longer
_MAX_UNHEARD_SHARE = 0.02  # of the points, in rounds of secure sums
_MAX_SUM_ROUNDS = 100
_GOOD_ENOUGH_RATIO = 1.05  # rounds cost messages: the fewest whose time is so close to the best


@dataclass(frozen=True, eq=False)
class ColdStart:
    """A plan of a cold start, and its predictions.

    Attributes
    ----------
    setup_deadline, round_deadline : float, seconds
    rounds : int
    points : array of shape (n,)
        Points that each client is expected to have embedded when the set-up ends.
    wanted, excess, seconds : float
        Target and predicted relative excess of the objective at the end, and the total time.
    floor : float
        The part of it due to sampling, which rounds do not reduce.
    heard : float
        Average share of the points answered for in a round.
    """

    setup_deadline: float
    round_deadline: float
    rounds: int
    points: IntArray
    wanted: float
    excess: float
    seconds: float
    floor: float
    heard: float

    def after_start(
        self, excess: float, theta: float, fewest_rounds: int, most_rounds: int
    ) -> "ColdStart":
        """Plan the number of rounds again, now that parity shows how good the start is.

        Parameters
        ----------
        excess
            The excess of the start, estimated from parity.
        theta
            Effective dimension over parity rows, of the parity itself.
        """
        above, left = max(excess - self.floor, 0.0), _left(self.heard, theta)
        rounds = _rounds_to(self.wanted - self.floor, above, left)
        rounds = min(max(rounds, fewest_rounds), most_rounds)
        seconds = self.setup_deadline + rounds * self.round_deadline
        expected = self.floor + above * left**rounds
        return replace(self, rounds=rounds, excess=expected, seconds=seconds)


def _left(heard: float, theta: float) -> float:
    """Return what a round leaves of the error."""
    return float(1 - heard * max(1 - theta**0.5, _LEAST_PROGRESS))


def _rounds_to(wanted: float, above: float, left: float) -> int:
    """Return the rounds until no more than is wanted is left; 10⁹ stands for never."""
    if above <= wanted:
        return 0
    if wanted <= 0 or left >= 1:
        return _NEVER_ROUNDS
    return min(int(np.ceil(np.log(wanted / above) / np.log(left))), _NEVER_ROUNDS)


def plan_embedding(
    seconds: FloatArray,
    held: npt.ArrayLike,
    features: int,
    wanted: float,
    counts: FloatArray | None = None,
    shift: float = 0.0,
) -> float:
    """Return for how long clients should embed so that sampling costs no more than is wanted.

    Parameters
    ----------
    seconds : array of shape (n,)
        What a point takes each client.
    counts, shift
        As of `sampling_excess`.
    """
    points = np.asarray(held, dtype=np.float64)

    def excess(budget: float) -> float:
        embedded = embedded_by(budget, seconds, points)
        return sampling_excess(points, embedded, features, counts, shift)

    low, high = 0.0, float((points * seconds).max())
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= wanted else (middle, high)
    return high


def best_cold_start(
    fleet: DelayParameters,
    held: npt.ArrayLike,
    setups: Sequence[BlockSetup],
    wanted: float,
    *,
    sparing: bool = False,
    **given: Any,
) -> tuple[ColdStart, BlockSetup]:
    """Return the soonest of several set-ups, each as `plan_cold_start` plans it.

    Of those that are as soon there it is the one with the best start, or if `sparing` the first.
    Raises the first refusal where all are refused.
    """
    plans, refusals = [], []
    for setup in setups:
        try:
            plans.append((plan_cold_start(fleet, held, setup, wanted, **given), setup))
        except InputError as error:
            refusals.append(error)
    if not plans:
        raise refusals[0]

    def order(planned: tuple[ColdStart, BlockSetup]) -> tuple[float, ...]:
        start = planned[0]
        return max(start.excess, wanted), start.seconds, 0.0 if sparing else start.excess

    return min(plans, key=order)


def plan_cold_start(
    fleet: DelayParameters,
    held: npt.ArrayLike,
    setup: BlockSetup,
    wanted: float,
    *,
    setup_deadline: float | None = None,
    deadline: float | None = None,
    rounds: int | None = None,
    summed: bool = False,
    counts: FloatArray | None = None,
) -> ColdStart:
    """Choose the plan with the smallest predicted time to a target relative excess.

    Parameters
    ----------
    fleet
        A `Fleet`, whose points per round are ignored; or `DelayParameters`.
    held : array of shape (n,)
        Total points of each client.
    wanted
        Such as 0.1, for a ridge objective at most 10% above its optimum.
    setup_deadline, deadline, rounds
        Deadlines of the set-up and of a round in seconds, and number of rounds; planned if None.
    summed
        Whether rounds are secure sums: late answers are lost, and the helper's message is a second
        one on the uplink.
    counts : array of shape (n, s), optional
        Points of each client by stratum, where they are known (`planning.strata`).
    """
    if not 0 < wanted < np.inf:
        raise InputError(f"excess is {wanted:g}: must be finite and above 0")
    for name, given in (("setup_deadline", setup_deadline), ("deadline", deadline)):
        if given is not None and not 0 < given < np.inf:
            raise InputError(f"{name} is {given:g}: must be finite and above 0 seconds")
    if rounds is not None and (rounds < 0 or rounds != int(rounds)):
        raise InputError(f"rounds is {rounds}: must be a whole number from 0 on")
    points = np.asarray(held, dtype=np.float64)
    planner = _Planner(fleet, points, setup, wanted, rounds, summed, counts)
    budgets = planner.budgets() if setup_deadline is None else np.array([setup_deadline])
    plans = [
        candidate
        for budget, points in zip(budgets, planner.embedded(budgets[:, None]), strict=True)
        for candidate in planner.candidates(float(budget), points, deadline)
    ]
    if not plans and setup_deadline is not None:
        raise planner.refusal(setup_deadline)
    if not plans:
        raise InputError(
            f"an excess of {wanted:g} is never reached: no client answers, or deadline is "
            "too short; raise either, or give rounds"
        )
    if rounds is not None:  # given: minimise the excess, then the time
        return min(plans, key=lambda plan: (max(plan.excess, wanted), plan.seconds))
    fastest = min(plan.seconds for plan in plans)
    close = [plan for plan in plans if plan.seconds <= _GOOD_ENOUGH_RATIO * fastest]
    return min(close, key=lambda plan: (plan.rounds, plan.seconds))


@dataclass(frozen=True, eq=False)
class _Planner:
    fleet: DelayParameters
    held: FloatArray
    setup: BlockSetup
    wanted: float
    rounds: int | None
    summed: bool = False
    counts: FloatArray | None = None

    def embedded(self, budget: float | FloatArray) -> IntArray:
        speed = self.setup.seconds_per_point(self.fleet)
        return self.setup.points_by(budget, self.fleet, self.held, speed)

    def floor(self, points: IntArray) -> float:
        """Return what sampling costs, which rounds do not reduce."""
        able = self.held >= self.setup.mixing  # the others are exact as soon as they answer
        counts, features = self.counts, self.setup.workload.features
        by_class = None if counts is None else counts[able]
        return sampling_excess(self.held[able], points[able], features, by_class)

    def earliest(self) -> float:
        """Return when the first parity row can be there."""
        if not (self.held >= self.setup.mixing).any():
            raise InputError(
                f"mixing is {self.setup.mixing}: every client has fewer points and could send no "
                "parity; lower it, or use a scheme without parity"
            )
        low, high = 0.0, 1.0
        while not self.embedded(high).any():
            low, high = high, 2 * high
        while high > 1.01 * low:
            middle = (low + high) / 2
            low, high = (low, middle) if self.embedded(middle).any() else (middle, high)
        return high

    def refusal(self, budget: float) -> InputError:
        """Say why a set-up of that length leads nowhere."""
        points = self.embedded(budget)
        if not points.any():
            return InputError(
                f"setup_deadline is {budget:g} s: by then no client has embedded and sent the "
                f"{self.setup.mixing} points of one parity row; the first needs some "
                f"{self.earliest():.3g} s"
            )
        floor = self.floor(points)
        if floor < self.wanted:
            return InputError(
                f"an excess of {self.wanted:g} is never reached after a set-up of {budget:g} s: no "
                "client answers, or deadline is too short; raise it, or give rounds"
            )
        return InputError(
            f"setup_deadline is {budget:g} s: so few points are embedded by then that an excess of "
            f"{floor:.2g} is expected, whatever the rounds bring, where {self.wanted:g} is wanted; "
            "raise either, or give rounds"
        )

    def budgets(self) -> FloatArray:
        """Return set-up deadlines from the first parity row, with bad luck, to everybody's last."""
        first = _UNLUCKY_RATIO * self.earliest()
        last = first
        able = self.held >= self.setup.mixing
        while (self.embedded(last) < self.held)[able].any():
            last *= 2
        return np.geomspace(first, last, _BUDGET_COUNT)

    def candidates(
        self, budget: float, points: IntArray, deadline: float | None
    ) -> list[ColdStart]:
        """Return plans with this set-up, one for every deadline worth trying."""
        rows = int(self.setup.rows(points).sum())
        if rows == 0:
            return []
        features = self.setup.workload.features
        theta = features / rows
        floor = self.floor(points)
        start = max(theta / (1 + theta) - floor, 0.0)
        plans = []
        for seconds, share in self._rounds_of(points, deadline):
            left, rounds = _left(share, theta), self.rounds
            if rounds is None:
                rounds = _rounds_to(self.wanted - floor, start, left)
            if rounds < _NEVER_ROUNDS:
                excess, last = floor + start * left**rounds, budget + rounds * seconds
                plans.append(
                    ColdStart(
                        budget, seconds, rounds, points, self.wanted, excess, last, floor, share
                    )
                )
        return plans

    def _rounds_of(self, points: IntArray, deadline: float | None) -> list[tuple[float, float]]:
        """Return deadlines worth trying, each with the average share of points answered for."""
        if self.summed:
            return [self._round_of_sums(points, deadline)]
        replies = self.fleet.mean(points)
        given = [deadline] if deadline is not None else self._deadlines(replies[points > 0])
        # A client that takes longer than a round answers every so many rounds.
        each = np.asarray(given)[:, None]
        fresh = self.fleet.availability / np.maximum(1.0, 0.5 + replies / each)
        heard = (self.held * fresh)[:, points > 0].sum(1) / self.held.sum()
        return list(zip(given, heard.tolist(), strict=True))

    def _round_of_sums(self, points: IntArray, deadline: float | None) -> tuple[float, float]:
        """Return the deadline at which nearly all points are answered for soonest, and their share.

        It must leave time for the slowest too: a client that misses one round misses all. A client
        that sent no parity answers for as few points as allowed.
        """
        loads = np.maximum(points, np.minimum(self.setup.mixing, self.held)).astype(np.int64)
        delays = with_helper(self.fleet)
        given = self._deadlines(delays.mean(loads)) if deadline is None else np.array([deadline])
        fresh, share = delays.cdf(loads, given[:, None]), self.held / self.held.sum()
        rounds = np.geomspace(1, _MAX_SUM_ROUNDS, _DEADLINE_COUNT)
        unheard = np.array([(1 - fresh) ** count @ share for count in rounds])
        enough = unheard <= unheard.min() + _MAX_UNHEARD_SHARE
        first = np.where(enough.any(0), rounds[enough.argmax(0)], np.inf)  # of each deadline
        soonest = int(np.argmin(first * given))
        return float(given[soonest]), float(fresh[soonest] @ share)

    @staticmethod
    def _deadlines(replies: FloatArray) -> FloatArray:
        least = replies.min() / 2  # shorter rounds would bring answers no sooner
        return np.geomspace(least, max(replies.max(), 1.01 * least), _DEADLINE_COUNT)
