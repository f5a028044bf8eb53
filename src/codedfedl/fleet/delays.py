"""How long a client takes: the delay model of section 2.2.

A round costs client j the time T = overhead + ℓ̃/μ + Exp(αμ/ℓ̃) + N_d·τ_d + N_u·τ_u, with geometric
N_d and N_u; with probability 1 − availability it does not answer at all (T = ∞).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from codedfedl._types import FloatArray, IntArray
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.transmissions import (
    LARGEST_ALPHA,
    NEGLIGIBLE,
    answered_by,
    geometric_sum,
    transmissions_within,
    useful_transmissions,
)

__all__ = [
    "FOREVER",
    "Chance",
    "Chances",
    "DelayDistribution",
    "DelayModel",
    "FleetDelays",
    "expected_maximum",
]

FOREVER = 1e150
"""Seconds after which every client that takes part has answered."""

_BLOCK = 1 << 16  # elements of a temporary array: what stays in a core's cache
_SURELY = 1 - 1e-9
_CROSSING = 1e-3  # how late, relative to the time
_INSTANT = 1e-150  # seconds: what a load of 0 points takes


class Chances(Protocol):
    """The random part of the delays in a number of rounds, drawn before the loads are known."""

    def of_round(self, round_: int) -> Self:
        """Return the chances of one round."""


class DelayDistribution(Protocol):
    """What a planner needs to know of a fleet: anything with these members can be planned.

    ``cdf`` must not rise with the load, and must not fall with t.
    """

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""

    @property
    def points(self) -> FloatArray:
        """Points per round that each client holds, shape (n,)."""

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t) for loads and times that broadcast to shape (…, n)."""

    def take(self, clients: IntArray | slice) -> Self:
        """Return the same model of some of the clients."""

    def with_points(self, points: npt.ArrayLike) -> Self:
        """Return the same clients with other points per round."""


class DelayModel(DelayDistribution, Protocol):
    """A distribution of delays that can be sampled too: what a simulator needs.

    ``seconds`` of the chances that ``draw`` gives are distributed as ``cdf`` says.
    """

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        """Draw the chances of every round and client; the same chances serve any loads."""

    def seconds(self, loads: npt.ArrayLike, chance: Any) -> FloatArray:
        """T for the loads and chances that this model drew, shape (…, n); ∞ if no reply comes."""

    def bulk(
        self, points: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        Parameters
        ----------
        points
            Work in units of gradient points, shape (n,). It is done once, without a model download.
        packets
            Packets to upload, each of the size of a model, shape (n,).

        Returns
        -------
        compute, upload : arrays of shape (n,)
        """


@dataclass(frozen=True, eq=False)
class Chance:
    """The `Chances` of `FleetDelays`: all arrays have shape (rounds, n).

    The same chances serve any loads, so that schemes can be compared on the same luck.
    """

    slowness: FloatArray  # standard exponential
    down: IntArray  # transmissions until the model is there
    up: IntArray  # transmissions until the reply is there
    absent: npt.NDArray[np.bool_]

    def of_round(self, round_: int) -> "Chance":
        """Return what chance decides in one round, as arrays of shape (n,)."""
        parts = (self.slowness, self.down, self.up, self.absent)
        return Chance(*(part[round_] for part in parts))


@dataclass(frozen=True)
class FleetDelays:
    """The paper's delay model of a fleet.

    Examples
    --------
    >>> fleet = Fleet(points=[400], rate=[2], alpha=2, packet_time=3, erasure=0.1)
    >>> FleetDelays(fleet).cdf(loads=[400], t=300).round(3)
    array([0.607])
    """

    fleet: Fleet

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""
        return self.fleet.client

    @property
    def points(self) -> FloatArray:
        """Points per round that each client holds, shape (n,)."""
        return self.fleet.points

    def take(self, clients: IntArray | slice) -> "FleetDelays":
        """Return the same model of some of the clients."""
        return FleetDelays(self.fleet.take(clients))

    def with_points(self, points: npt.ArrayLike) -> "FleetDelays":
        """Return the same clients with other points per round, one number each or for all."""
        given: Any = points  # the fleet checks them
        return FleetDelays(replace(self.fleet, points=given))

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t), exactly.

        Parameters
        ----------
        loads
            Points to process, shape (…, n). A load of 0 leaves only the link.
        t
            Seconds, broadcast against `loads`.
        """
        fleet = self.fleet
        time = np.asarray(t, dtype=np.float64) - fleet.overhead
        compute = np.asarray(loads, dtype=np.float64) / fleet.rate
        time, compute = np.broadcast_arrays(time, compute)
        symmetric = fleet.symmetric
        if symmetric.all():
            return fleet.availability * _symmetric_cdf(fleet, time, compute)
        result = np.empty(time.shape)
        for part, cdf in ((symmetric, _symmetric_cdf), (~symmetric, _asymmetric_cdf)):
            clients = np.flatnonzero(part)
            result[..., clients] = cdf(
                fleet.take(clients), time[..., clients], compute[..., clients]
            )
        return fleet.availability * result

    def mean(self, loads: npt.ArrayLike) -> FloatArray:
        """E[T] of a client that takes part, seconds, shape (…, n)."""
        fleet = self.fleet
        compute = np.asarray(loads, dtype=np.float64) / fleet.rate * (1 + 1 / fleet.alpha)
        down = fleet.packet_time / (1 - fleet.erasure)
        up = fleet.packet_time_up / (1 - fleet.erasure_up)
        return np.asarray(fleet.overhead + compute + down + up, dtype=np.float64)

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw T for every round and client, shape (rounds, n); ∞ where a client is absent."""
        return self.seconds(loads, self.draw(rounds, rng))

    def draw(self, rounds: int, rng: np.random.Generator) -> "Chance":
        """Draw what chance decides in every round, whatever the loads will be."""
        fleet = self.fleet
        shape = (rounds, len(fleet))
        slowness = rng.standard_exponential(shape)
        down = rng.geometric(1 - fleet.erasure, shape)
        up = rng.geometric(1 - fleet.erasure_up, shape)
        return Chance(slowness, down, up, rng.random(shape) >= fleet.availability)

    def seconds(self, loads: npt.ArrayLike, chance: "Chance") -> FloatArray:
        """T for the loads and what chance decided, shape (…, n); ∞ where a client is absent."""
        fleet = self.fleet
        compute = np.asarray(loads, dtype=np.float64) / fleet.rate
        total = chance.slowness * (compute / fleet.alpha)
        total += compute + fleet.overhead
        total += fleet.packet_time * chance.down
        total += fleet.packet_time_up * chance.up
        total[chance.absent] = np.inf
        return total

    def bulk(
        self, points: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        Neither overhead nor availability play a part, which are a round's.
        """
        fleet = self.fleet
        compute = np.asarray(points, dtype=np.float64) / fleet.rate
        compute = compute * (1 + rng.standard_exponential(len(fleet)) / fleet.alpha)
        packets = np.asarray(packets, dtype=np.int64)
        again = rng.negative_binomial(np.maximum(packets, 1), 1 - fleet.erasure_up)
        upload = (packets + np.where(packets > 0, again, 0)) * fleet.packet_time_up
        return compute, upload


def expected_maximum(model: DelayDistribution, loads: npt.ArrayLike) -> float:
    """E[max_j T_j]: the mean round when the server waits for all who have a load, seconds.

    ∞ where some client may never answer. It is ∫(1 − Π_j P(T_j ≤ t)) dt, by adaptive quadrature:
    good to three digits or more where the link alone decides (steps), to six elsewhere.
    """
    from scipy.integrate import IntegrationWarning, quad

    loads = np.asarray(loads, dtype=np.float64) * np.ones(len(model.points))
    asked = np.flatnonzero(loads > 0)

    def all_done(model: DelayDistribution, loads: FloatArray, t: float) -> float:
        return float(np.prod(model.cdf(loads, t)))

    model, loads = model.take(asked), loads[asked]
    if all_done(model, loads, FOREVER) < _SURELY:
        return np.inf
    latest = _crossing(lambda t: all_done(model, loads, t) >= _SURELY)
    earliest = _crossing(lambda t: all_done(model, loads, t) >= 1e-12) / (1 + _CROSSING)
    slow = np.flatnonzero(model.cdf(loads, earliest) < 1)  # the others are done by then
    slowest, their_loads = model.take(slow), loads[slow]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IntegrationWarning)  # a staircase has no smooth panels
        rest, _ = quad(
            lambda t: 1 - all_done(slowest, their_loads, t),
            earliest,
            latest,
            epsrel=1e-6,
            epsabs=1e-6 * latest,
            limit=200,
        )
    return float(earliest + rest)


def _crossing(reached: Callable[[float], bool]) -> float:
    """Return the time at which something becomes true, a little late."""
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, 2 * high
    while low == 0.0 and high > _INSTANT and reached(high / 2):
        high /= 2
    low = max(low, high / 2)
    while high > low * (1 + _CROSSING):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _symmetric_cdf(fleet: Fleet, time: FloatArray, compute: FloatArray) -> FloatArray:
    """Sum the Theorem's terms over ν, for a link that is the same both ways."""
    erasure = np.where(fleet.packet_time > 0, fleet.erasure, 0.0)
    last, compute = useful_transmissions(erasure), np.maximum(compute, _INSTANT)
    alpha = np.minimum(fleet.alpha, LARGEST_ALPHA)
    return answered_by(time, compute, last, alpha, fleet.packet_time, erasure)[0]


def _asymmetric_cdf(fleet: Fleet, time: FloatArray, compute: FloatArray) -> FloatArray:
    """Sum over the attempts of the link that loses less; the other link's sum is closed.

    Attempts that are reached with a probability below `NEGLIGIBLE` are left out, on each link.
    """
    links = [(fleet.packet_time, fleet.erasure), (fleet.packet_time_up, fleet.erasure_up)]
    links = [(tau, np.where(tau > 0, p, 0.0)) for tau, p in links]
    down_is_outer = links[0][1] <= links[1][1]
    (tau, p), (inner_tau, inner_p) = (
        [np.where(choose, d, u) for d, u in zip(*links, strict=True)]
        for choose in (down_is_outer, ~down_is_outer)
    )
    alpha = np.minimum(fleet.alpha, LARGEST_ALPHA)
    columns = (time, compute, tau, p, inner_tau, inner_p, alpha)
    flat = [column.reshape(-1, 1) for column in np.broadcast_arrays(*columns)]
    time_, compute_, tau, p, inner_tau, inner_p, alpha = flat
    spare = time_ - compute_ - inner_tau
    last = np.where(p > 0, np.log(NEGLIGIBLE) / np.log(np.maximum(p, 1e-300)), 1.0)
    last = np.minimum(transmissions_within(spare, tau), np.ceil(last))
    total = np.zeros(len(time_))
    width = max(1, _BLOCK // max(len(time_), 1))
    for first in range(1, int(last.max(initial=0)) + 1, width):
        attempt = np.arange(first, min(first + width, int(last.max()) + 1))
        chance = np.where(attempt <= last, (1 - p) * p ** (attempt - 1), 0.0)
        rest = _one_way_cdf(time_ - attempt * tau, compute_, inner_tau, inner_p, alpha)
        total += (chance * rest).sum(-1)
    return np.minimum(total, 1.0).reshape(time.shape)


def _one_way_cdf(
    time: FloatArray, compute: FloatArray, tau: FloatArray, p: FloatArray, alpha: FloatArray
) -> FloatArray:
    """P(compute + exponential + N·τ ≤ time) with N geometric, in closed form."""
    log_p = np.log(np.maximum(p, 1e-300))
    attempts = transmissions_within(time - compute, tau)
    attempts = np.minimum(attempts, np.where(p > 0, np.ceil(np.log(NEGLIGIBLE) / log_p), 1.0))
    counted = np.maximum(attempts, 1.0)
    inverse = 1 / np.maximum(compute, _INSTANT)
    log_ratio = log_p + alpha * tau * inverse
    retries = np.where(log_ratio > 0, counted - 1, 0.0)  # the largest term
    slack = np.maximum((time - (1 + retries) * tau) * inverse - 1, 0.0)
    late = (1 - p) * np.exp(retries * log_p - alpha * slack) * geometric_sum(log_ratio, counted)
    return np.where(attempts >= 1, np.maximum(-np.expm1(counted * log_p) - late, 0.0), 0.0)
