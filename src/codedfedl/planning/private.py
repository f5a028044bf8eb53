"""The plan of private training: set-up, rounds, loads, weights and noise for an (ε, δ).

Four effects predict the error of the predictions, before any data are seen. Lengths of features are
in units of their clipping radius R, those of residuals are as they are:

- *too few rounds*. The covariance of q features is taken to have eigenvalues in proportion to
  1/i, and the best model to be alike in all directions. Nesterov's method is followed for each
  eigenvalue; as residuals are clipped to C < 1, the signal moves C times as far.
- *noise*, which the same recursion adds up: √T·w/μ on every number of a sum over T rounds, where w
  is the largest weight.
- *sampling*. Client j stands for its ℓ_j points with k_j, each w_j times as heavy, which costs
  q·k_j·w_j²/m² of the residuals' variance, but no more than its share of the points.
- *the cap*. A client whose weight is cut to a share ρ of what it should be costs C·(1 − ρ)² of its
  share of the points: labels have length 1, and a clipped residual pulls with C.

The first two say how many rounds, and the last two how long they are; the cap on the weights is
between noise and both of these.
"""

from dataclasses import dataclass, replace
from itertools import product
from math import inf, sqrt

import numpy as np

from codedfedl._types import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.costs import seconds_to_embed
from codedfedl.fleet.delays import FleetDelays
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.privacy.accounting import mu_of
from codedfedl.privacy.fixed_point import LEAST_SUMMED

__all__ = [
    "CENTRE_SHARE",
    "RESIDUAL",
    "PrivatePlan",
    "eigenvalues",
    "learning_errors",
    "plan_private",
]

CENTRE_SHARE = 0.05
"""Share of the budget μ² that the one sum before the gradients has."""

RESIDUAL = 0.5
"""C: residuals are clipped to half the length of a one-hot label."""

_DECAY = 1.0  # of the eigenvalues
_CAPS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_STEPS = (1.0, 0.5, 0.25)  # of the longest stable one
_DEADLINES = 24
_SURE, _PATIENCE = 0.98, 3.0  # of a client by the usual end of a round; deadline over usual end
_LENGTHS = 64  # numbers of rounds that are tried


@dataclass(frozen=True, eq=False)
class PrivatePlan:
    """What is chosen, and what is expected of it.

    Attributes
    ----------
    mu
        Of all gradients together.
    setup_deadline, deadline : float, seconds
        Of the set-up and of every round, which ends sooner when everybody has answered: clients
        have different labels, and a sum without one of them points elsewhere.
    rounds : int
        Sums of gradients; one sum more comes first.
    cap
        No weight is larger, in the plan or in the run.
    step
        Of Nesterov's method, in units of 1/R².
    loads, chances : arrays of shape (n,)
        Points of each client in a round, and its probability to arrive.
    error
        Predicted squared error of the predictions above that of the best model.
    """

    mu: float
    setup_deadline: float
    deadline: float
    rounds: int
    cap: float
    step: float
    loads: IntArray
    chances: FloatArray
    error: float

    @property
    def seconds(self) -> float:
        """When the last round ends, as a rule: rounds end when everybody has answered."""
        return self.setup_deadline + (self.rounds + 1) * self.deadline / _PATIENCE


def eigenvalues(features: int) -> FloatArray:
    """Return what the covariance is taken to have, the largest first; they add up to 1."""
    falling = np.arange(1, features + 1) ** -_DECAY
    return np.asarray(falling / falling.sum())


def learning_errors(step: float, features: int, rounds: int) -> tuple[FloatArray, FloatArray]:
    """Return the shares of signal missed, and noise gained, after 0, 1, … rounds.

    Parameters
    ----------
    step
        In units of one over the trace of the covariance.

    Returns
    -------
    missed : array of shape (rounds + 1,)
        Of a signal that is alike in all directions; 1 at first.
    gained : array of shape (rounds + 1,)
        Squared error of the predictions, for noise of variance 1 on every number of a gradient.
    """
    values = eigenvalues(features)
    slow, fast = 1 - step * RESIDUAL * values, 1 - step * values
    now, before = np.ones(features), np.ones(features)
    # Variances of the model, of the one before, and their covariance.
    new, old, both = np.zeros(features), np.zeros(features), np.zeros(features)
    missed, gained = [1.0], [0.0]
    for k in range(rounds):
        lean = max(k - 1, 0) / (max(k - 1, 0) + 3)
        now, before = slow * (now + lean * (now - before)), now
        asked = (1 + lean) ** 2 * new + lean**2 * old - 2 * (1 + lean) * lean * both
        new, old, both = fast**2 * asked + step**2, new, fast * ((1 + lean) * new - lean * both)
        missed.append(float(values @ now**2))
        gained.append(float(values @ new))
    return np.array(missed), np.array(gained)


def plan_private(
    fleet: Fleet,
    workload: Workload,
    feature_macs: int,
    *,
    epsilon: float,
    delta: float,
    hours: float,
    most_rounds: int,
    rounds: int | None = None,
    setup_deadline: float | None = None,
    deadline: float | None = None,
    cap: float | None = None,
) -> PrivatePlan:
    """Choose what promises the smallest error by some hour; what is given is taken as it is.

    Parameters
    ----------
    fleet
        Its points are all points of each client.
    hours
        When the plan ends, set-up included, unless rounds and deadlines are given.
    most_rounds
        Of gradients.
    """
    mu = mu_of(epsilon, delta) * sqrt(1 - CENTRE_SHARE)
    planner = _Planner(fleet, workload, feature_macs, mu, 3600 * hours, deadline is not None)
    trials = [deadline] if deadline is not None else planner.deadlines()
    caps = _CAPS if cap is None else (cap,)
    counts = planner.round_counts(most_rounds) if rounds is None else np.array([rounds])
    longest = float(1 / eigenvalues(workload.features)[0])
    steps = [longest * share for share in _STEPS]
    learnt = {step: learning_errors(step, workload.features, int(counts[-1])) for step in steps}
    best: PrivatePlan | None = None
    for seconds in trials:
        here = planner.at(seconds, setup_deadline)
        fits = counts if rounds is not None else counts[counts <= planner.room(here)]
        for limit, step in product(caps, steps):
            found = planner.best(here, limit, step, learnt[step], fits)
            if found is not None and (best is None or found.error < best.error):
                best = found
    if best is None:
        raise InputError(
            f"private.hours is {hours:g}: no set-up and two rounds with two clients end by then; "
            "raise it, or private.deadline where that is given"
        )
    return best


def _surely_done(delays: FleetDelays, seconds: float, points: FloatArray) -> IntArray:
    """Return the largest loads with which each client is done in time, but for bad luck."""
    low, high = np.zeros(len(points), dtype=np.int64), np.asarray(points, dtype=np.int64)
    while (low < high).any():
        middle = (low + high + 1) // 2
        done = delays.cdf(middle, seconds) >= _SURE * delays.availability
        low, high = np.where(done, middle, low), np.where(done, high, middle - 1)
    return low


@dataclass(frozen=True, eq=False)
class _Trial:
    """Rounds of one length: loads and chances of the clients, and the set-up that they need."""

    deadline: float
    setup_deadline: float
    loads: IntArray
    chances: FloatArray


@dataclass(frozen=True, eq=False)
class _Planner:
    fleet: Fleet
    workload: Workload
    feature_macs: int
    mu: float
    seconds: float
    given: bool = False  # whether somebody else has set the deadline

    def deadlines(self) -> FloatArray:
        """Return lengths of rounds, from a slow link's messages and overhead on."""
        messages = self.fleet.packet_time / (1 - self.fleet.erasure)
        messages = messages + 2 * self.fleet.packet_time_up / (1 - self.fleet.erasure_up)
        least = max(float(np.median(messages + self.fleet.overhead)), 1e-6 * self.seconds)
        return _PATIENCE * np.geomspace(least, max(self.seconds / 3, 2 * least), _DEADLINES)

    def round_counts(self, most: int) -> IntArray:
        spread = np.geomspace(1, max(most, 1), _LENGTHS).round().astype(np.int64)
        return np.unique(np.concatenate([spread, np.arange(1, min(most, 60) + 1)]))

    def room(self, trial: _Trial) -> float:
        """Return how many gradients the time leaves room for, after one round for the centre."""
        return (self.seconds - trial.setup_deadline) * _PATIENCE / trial.deadline - 1

    def at(self, deadline: float, setup_deadline: float | None) -> _Trial:
        """Return loads with which nearly everybody is done when a round usually ends.

        The helper's message is a second one up. The set-up is as long as the slowest of the clients
        needs to embed its load.
        """
        slower = replace(self.fleet, packet_time_up=2 * self.fleet.packet_time_up)
        delays, usual = FleetDelays(slower), deadline / _PATIENCE
        loads = _surely_done(delays, usual, self.fleet.points)
        if self.given and (loads > 0).sum() < LEAST_SUMMED:  # it leaves no time for patience
            loads = _surely_done(delays, deadline, self.fleet.points)
        each = seconds_to_embed(self.feature_macs, self.workload, self.fleet)
        if setup_deadline is None:
            setup_deadline = float((loads * each).max())
        loads = np.minimum(loads, (setup_deadline / each * (1 + 1e-9)).astype(np.int64))
        return _Trial(deadline, setup_deadline, loads, delays.cdf(np.maximum(loads, 1), deadline))

    def best(
        self,
        trial: _Trial,
        cap: float,
        step: float,
        learnt: tuple[FloatArray, FloatArray],
        counts: IntArray,
    ) -> PrivatePlan | None:
        """Return the plan with the best number of rounds, if there is any."""
        points, expected = self.fleet.points, trial.loads * trial.chances
        if (expected > 0).sum() < LEAST_SUMMED or not len(counts):
            return None
        fair = points / np.maximum(expected, 1e-300)
        weights = np.where(expected > 0, np.minimum(fair, cap), 0.0)
        largest = float(weights.max())
        total, share = float((weights * expected).sum()), points / points.sum()
        q, c = self.workload.features, self.workload.labels
        sampling = np.minimum(q * expected * weights**2 / points.sum() ** 2, share)
        missing = share * (1 - weights * expected / points) ** 2
        fixed = RESIDUAL * float((RESIDUAL * sampling + missing).sum())
        noise = RESIDUAL * largest / (self.mu * total)
        missed, gained = (array[counts] for array in learnt)
        errors = missed + c * gained * counts * noise**2 + fixed
        place = int(np.argmin(errors))
        return PrivatePlan(
            mu=self.mu,
            setup_deadline=trial.setup_deadline,
            deadline=trial.deadline,
            rounds=int(counts[place]),
            cap=largest if largest < inf else cap,
            step=step,
            loads=trial.loads,
            chances=trial.chances,
            error=float(errors[place]),
        )
