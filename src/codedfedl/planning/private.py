"""The plan of private training: set-up, rounds, loads, weights and noise for an (ε, δ).

Every client embeds a pool of its points until a deadline. In every round each point of the pool is
drawn with the client's own probability γ_j, chosen so that the round lasts as planned. For the same
privacy, a point that is rarely drawn may have a larger weight than one that is in every sum
(`privacy.sampling`). So a slow client's few points in a round represent all that it has embedded.

Five effects predict the error of the predictions, before any data are seen. Lengths of features are
in units of their clipping radius R, those of residuals are as they are:

- *too few rounds*. The covariance of q features is assumed to have eigenvalues proportional to 1/i,
  and the best model to be isotropic. Nesterov's method is followed for each eigenvalue; as
  residuals are clipped to C < 1, everything moves C times as far.
- *noise*, which the same recursion adds up, alike on every number of a sum.
- *draws*, whose noise is in proportion to the eigenvalues.
- *pools*. Client j represents its ℓ_j points by k_j of them, each with the mean weight w_j·γ_j,
  which costs q·k_j·(w_j·γ_j)²/m² of the residuals' variance, but no more than its share.
- *the cap*. A client whose weight is cut to a share ρ of what it should be costs C·(1 − ρ)² of its
  share of the points: labels have length 1, and a clipped residual pulls with C.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, sqrt

import numpy as np

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.costs import seconds_to_embed
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.planning.secure_rounds import (
    RESIDUAL,
    in_time,
    learning_errors,
    longest_step,
    with_helper,
)
from codedfedl.privacy.accounting import mu_of
from codedfedl.privacy.fixed_point import LEAST_SUMMED
from codedfedl.privacy.sampling import weight_ratios

__all__ = [
    "CENTRE_SHARE",
    "PrivatePlan",
    "allowed_weights",
    "plan_private",
]

CENTRE_SHARE = 0.05
"""Share of the budget μ² that the one sum before the gradients has."""

_CAP_GRID = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
_STEP_SHARES = (1.0, 0.5, 0.25)  # of the longest stable step
_DEADLINE_COUNT = 16
_SETUP_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)  # of all the time
_FIRST_SUM_ROUNDS = 2  # that the first sum takes: whole pools, at a fifth of the work
_SURE_PROBABILITY = 0.98  # of a client that it answers by the usual end of a round
_PATIENCE_RATIO = 3.0  # of a round's deadline to its usual end
_ROUND_COUNTS = 48  # numbers of rounds that are tried

Learnt = Mapping[float, tuple[FloatArray, FloatArray]]
"""`learning_errors` by step."""


@dataclass(frozen=True, eq=False)
class PrivatePlan:
    """A plan, and its predictions.

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
        The largest weight of a point that is in every sum.
    step
        Of Nesterov's method, in units of 1/R².
    loads, rates, weights, chances : arrays of shape (n,)
        Each client's pool, the probability that a point is drawn, its weight if drawn, and the
        probability that the client arrives.
    caps : array of shape (n,)
        Largest weight of a drawn point of the client, even if fewer are embedded than planned.
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
    rates: FloatArray
    weights: FloatArray
    caps: FloatArray
    chances: FloatArray
    error: float

    @property
    def seconds(self) -> float:
        """When the last round ends, as a rule: rounds end when everybody has answered."""
        return (
            self.setup_deadline
            + (self.rounds + _FIRST_SUM_ROUNDS) * self.deadline / _PATIENCE_RATIO
        )

    @property
    def exposures(self) -> FloatArray:
        """How much a record of each client weighs in the account, in units of the cap: (n,)."""
        return np.where(self.loads > 0, self.weights * self.rates / self.cap, 0.0)


def allowed_weights(
    cap: float, mu: float, delta: float, counts: IntArray, rates: FloatArray
) -> FloatArray:
    """Return the weights that cost no more than `cap` in every sum, shape (counts, n).

    Without noise there is no privacy cost, and the cap applies to the average weight.
    """
    if mu == inf:
        return np.tile(cap / np.maximum(rates, 1e-12), (len(counts), 1))
    return cap * np.stack([weight_ratios(mu, delta, int(count), rates) for count in counts])


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
    sampling: bool = True,
    longest: float | None = None,
) -> PrivatePlan:
    """Choose the plan with the smallest predicted error by some hour; keep values that are given.

    Parameters
    ----------
    fleet
        Its points are all points of each client.
    hours
        When the plan ends, set-up included, unless rounds and deadlines are given.
    most_rounds
        Of gradients.
    sampling
        Whether points are drawn from larger pools; otherwise a client has as many as it can
        process in a round.
    longest
        Clipping length of a client's whole sum, for a client-level guarantee.
    """
    mu = mu_of(epsilon, delta) * sqrt(1 - CENTRE_SHARE)
    given, seconds = deadline is not None, 3600 * hours
    planner = _Planner(fleet, workload, feature_macs, mu, delta, seconds, longest, given)
    lengths = [deadline] if deadline is not None else planner.deadlines()
    setups = [setup_deadline] if setup_deadline is not None else planner.setups()
    caps = _CAP_GRID if cap is None else (cap,)
    counts = planner.round_counts(most_rounds) if rounds is None else np.array([rounds])
    steps = [longest_step(workload.features) * share for share in _STEP_SHARES]
    learnt = {step: learning_errors(step, workload.features, int(counts[-1])) for step in steps}
    best: PrivatePlan | None = None
    rounds_of = {seconds: planner.round_of(seconds) for seconds in lengths}
    for seconds, first in product(lengths, setups):
        trial = planner.at(seconds, first, *rounds_of[seconds], sampling=sampling)
        fits = counts if rounds is not None else counts[counts <= planner.room(trial)]
        candidate = planner.best(trial, caps, learnt, fits)
        if candidate is not None and (best is None or candidate.error < best.error):
            best = candidate
    if best is None:
        raise InputError(
            f"private.hours is {hours:g}: no set-up and two rounds with two clients end by then; "
            "raise it, or private.deadline where that is given"
        )
    return best


@dataclass(frozen=True, eq=False)
class _Trial:
    """Rounds of one length after some set-up: pools, rates and chances of the clients."""

    deadline: float
    setup_deadline: float
    loads: IntArray
    rates: FloatArray
    chances: FloatArray


@dataclass(frozen=True, eq=False)
class _Planner:
    fleet: Fleet
    workload: Workload
    feature_macs: int
    mu: float
    delta: float
    seconds: float
    longest: float | None
    given: bool = False  # whether somebody else has set the deadline

    def deadlines(self) -> FloatArray:
        """Return lengths of rounds, from a slow link's messages and overhead on."""
        messages = self.fleet.packet_time / (1 - self.fleet.erasure)
        messages = messages + 2 * self.fleet.packet_time_up / (1 - self.fleet.erasure_up)
        least = max(float(np.median(messages + self.fleet.overhead)), 1e-6 * self.seconds)
        return _PATIENCE_RATIO * np.geomspace(
            least, max(self.seconds / 6, 2 * least), _DEADLINE_COUNT
        )

    def setups(self) -> FloatArray:
        """Return lengths of the set-up."""
        return self.seconds * np.array(_SETUP_SHARES)

    def round_counts(self, most: int) -> IntArray:
        return np.unique(np.geomspace(1, max(most, 1), _ROUND_COUNTS).round().astype(np.int64))

    def room(self, trial: _Trial) -> float:
        """Return how many gradients the time leaves room for, after the first sum."""
        return (
            self.seconds - trial.setup_deadline
        ) * _PATIENCE_RATIO / trial.deadline - _FIRST_SUM_ROUNDS

    def round_of(self, deadline: float) -> tuple[IntArray, FloatArray]:
        """Return how many points each client almost surely finishes by the usual end of a round.

        Also its probability of finishing by the deadline. The helper's message is a second upload.
        """
        delays = with_helper(self.fleet)
        processed = in_time(
            delays, deadline / _PATIENCE_RATIO, self.fleet.points, _SURE_PROBABILITY
        )
        if self.given and (processed > 0).sum() < LEAST_SUMMED:  # it leaves no time for patience
            processed = in_time(delays, deadline, self.fleet.points, _SURE_PROBABILITY)
        return processed, delays.cdf(np.maximum(processed, 1), deadline)

    def at(
        self,
        deadline: float,
        setup_deadline: float,
        processed: IntArray,
        chances: FloatArray,
        *,
        sampling: bool,
    ) -> _Trial:
        """Return pools, and the rates at which as many points are drawn as can be processed."""
        each = seconds_to_embed(self.feature_macs, self.workload, self.fleet)
        pools = np.minimum(setup_deadline / each * (1 + 1e-9), self.fleet.points).astype(np.int64)
        pools = np.where(processed > 0, pools, 0)
        if not sampling:
            pools = np.minimum(pools, processed)
        rates = np.minimum(processed / np.maximum(pools, 1), 1.0)
        return _Trial(deadline, setup_deadline, pools, rates, chances)

    def best(
        self, trial: _Trial, caps: Sequence[float], learnt: Learnt, counts: IntArray
    ) -> PrivatePlan | None:
        """Return the plan with the best cap, step and number of rounds, if there is any."""
        points, expected = self.fleet.points, trial.loads * trial.rates * trial.chances
        if (expected > 0).sum() < LEAST_SUMMED or not len(counts):
            return None
        fair = points / np.maximum(expected, 1e-300)
        ratios = allowed_weights(1.0, self.mu, self.delta, counts, trial.rates)
        best: PrivatePlan | None = None
        for cap in caps:
            weights = np.where(expected > 0, np.minimum(fair, cap * ratios), 0.0)  # (counts, n)
            fixed, noise, drawn = self._effects(trial, cap, weights, expected, counts)
            for step, (missed, gained) in learnt.items():
                errors = missed[counts] + (gained[:, counts] * [noise, drawn]).sum(0) + fixed
                k = int(np.argmin(errors))
                if best is None or errors[k] < best.error:
                    best = PrivatePlan(
                        mu=self.mu,
                        setup_deadline=trial.setup_deadline,
                        deadline=trial.deadline,
                        rounds=int(counts[k]),
                        cap=cap,
                        step=step,
                        loads=trial.loads,
                        rates=trial.rates,
                        weights=weights[k],
                        caps=cap * ratios[k],
                        chances=trial.chances,
                        error=float(errors[k]),
                    )
        return best

    def _effects(
        self,
        trial: _Trial,
        cap: float,
        weights: FloatArray,
        expected: FloatArray,
        counts: IntArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what pools and cap cost, and the variances of noise and draws, by rounds."""
        points, share = self.fleet.points, self.fleet.points / self.fleet.points.sum()
        q, c = self.workload.features, self.workload.labels
        total = (weights * expected).sum(1)
        standing = trial.loads * trial.chances * (weights * trial.rates) ** 2
        pools = np.minimum(q * standing / points.sum() ** 2, share)
        missing = share * (1 - weights * expected / points) ** 2
        fixed = RESIDUAL * (RESIDUAL * pools + missing).sum(1)
        hidden = cap if self.longest is None else self.longest
        noise = c * counts * (RESIDUAL * hidden / (self.mu * total)) ** 2
        drawn = (expected * (1 - trial.rates) * weights**2).sum(1) * (RESIDUAL / total) ** 2
        return np.asarray(fixed), np.asarray(noise), np.asarray(drawn)
