"""How long a client takes: the delay model of section 2.2.

A round costs client j the time T = overhead + ℓ̃/μ + Exp(αμ/ℓ̃) + N_d·τ_d + N_u·τ_u, with geometric
N_d and N_u; with probability 1 − availability it does not answer at all (T = ∞).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.columns import checked_points
from codedfedl.fleet.devices import DelayParameters, Fleet
from codedfedl.fleet.round_time import asymmetric_cdf, symmetric_cdf

if TYPE_CHECKING:
    from codedfedl.fleet.measured import MeasuredDelays

__all__ = [
    "FOREVER",
    "Chance",
    "Chances",
    "DelayDistribution",
    "DelayModel",
    "Delays",
    "DelaysWithPoints",
    "FleetDelays",
    "delays_and_points",
    "delays_of",
]

FOREVER = 1e150
"""Seconds after which every client that takes part has answered."""


class Chances(Protocol):
    """The random part of the delays in a number of rounds, drawn before the loads are known."""

    def of_round(self, round_: int) -> Self:
        """Return the chances of one round."""


class DelayDistribution(Protocol):
    """What a planner needs to know of delays: anything with these members can be planned.

    ``cdf`` must not rise with the load, and must not fall with t. How many points the clients have
    is not part of it: a plan takes both.
    """

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t) for loads and times that broadcast to shape (…, n)."""

    def take(self, clients: IntArray | slice) -> Self:
        """Return the same model for some of the clients."""


class DelayModel(DelayDistribution, Protocol):
    """A distribution of delays that can also be sampled, for simulation.

    ``seconds`` of the draws made by ``draw`` follow the distribution ``cdf``.
    """

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        """Make the random draws of every round and client; they serve any loads."""

    def seconds(self, loads: npt.ArrayLike, chance: Any) -> FloatArray:
        """T for the loads and chances that this model drew, shape (…, n); ∞ if no reply comes."""

    def bulk(
        self,
        work: npt.ArrayLike,
        packets: npt.ArrayLike,
        rng: np.random.Generator,
        *,
        per_point: float = 1.0,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        Parameters
        ----------
        work
            What is computed, shape (n,). It is done once, without a model download.
        packets
            Packets to upload, each of the size of a model, shape (n,).
        per_point
            How much work the gradient of one point is; by default, work is counted in points.

        Returns
        -------
        compute, upload : arrays of shape (n,)
        """

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets beside those of a round, shape (n,)."""


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
        """Return what chance decides in one round, shape (n,)."""
        return Chance(
            self.slowness[round_], self.down[round_], self.up[round_], self.absent[round_]
        )


@dataclass(frozen=True)
class FleetDelays:
    """The paper's delay model, for a fleet or for parameters without points.

    Examples
    --------
    >>> fleet = Fleet(points=[400], rate=[2], alpha=2, packet_time=3, erasure=0.1)
    >>> FleetDelays(fleet).cdf(loads=[400], t=300).round(3)
    array([0.607])
    """

    fleet: DelayParameters

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""
        return self.fleet.client

    @property
    def availability(self) -> FloatArray:
        """Probability that a reply ever arrives, shape (n,)."""
        return self.fleet.availability

    def take(self, clients: IntArray | slice) -> "FleetDelays":
        """Return the same model for some of the clients."""
        return FleetDelays(self.fleet.take(clients))

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
            return fleet.availability * symmetric_cdf(fleet, time, compute)
        result = np.empty(time.shape)
        for part, cdf in ((symmetric, symmetric_cdf), (~symmetric, asymmetric_cdf)):
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
        """Draw T for every round and client, shape (rounds, n); ∞ if a client is absent."""
        return self.seconds(loads, self.draw(rounds, rng))

    def draw(self, rounds: int, rng: np.random.Generator) -> "Chance":
        """Make the random draws of every round; they do not depend on the loads."""
        fleet = self.fleet
        shape = (rounds, len(fleet))
        slowness = rng.standard_exponential(shape)
        down = rng.geometric(1 - fleet.erasure, shape)
        up = rng.geometric(1 - fleet.erasure_up, shape)
        return Chance(slowness, down, up, rng.random(shape) >= fleet.availability)

    def seconds(self, loads: npt.ArrayLike, chance: "Chance") -> FloatArray:
        """T for the loads and the random draws, shape (…, n); ∞ if a client is absent."""
        fleet = self.fleet
        compute = np.asarray(loads, dtype=np.float64) / fleet.rate
        total = chance.slowness * (compute / fleet.alpha)
        total += compute + fleet.overhead
        total += fleet.packet_time * chance.down
        total += fleet.packet_time_up * chance.up
        total[chance.absent] = np.inf
        return total

    def bulk(
        self,
        work: npt.ArrayLike,
        packets: npt.ArrayLike,
        rng: np.random.Generator,
        *,
        per_point: float = 1.0,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        Overhead and availability are not included: they apply to rounds.
        """
        fleet = self.fleet
        # The rate in units of work: one division, one rounding.
        compute = np.asarray(work, dtype=np.float64) / (per_point * fleet.rate)
        compute = compute * (1 + rng.standard_exponential(len(fleet)) / fleet.alpha)
        return compute, self.upload(packets, rng)

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets, each sent until it arrives, shape (n,)."""
        packets = np.asarray(packets, dtype=np.int64)
        losses = rng.negative_binomial(np.maximum(packets, 1), 1 - self.fleet.erasure_up)
        sent = np.where(packets > 0, packets + losses, 0)
        return np.asarray(sent * self.fleet.packet_time_up, dtype=np.float64)


D_co = TypeVar("D_co", bound=DelayDistribution, covariant=True)


@dataclass(frozen=True, eq=False)
class DelaysWithPoints(Generic[D_co]):
    """Delays of any model with the points of each client: the input of a plan.

    A `Fleet` is the equivalent for the paper's own delay model.

    Parameters
    ----------
    delays
        Any `DelayDistribution`.
    points : array of shape (n,)
        Points per round of each client, or one number for all.
    """

    delays: D_co
    points: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", checked_points(self.points, self.delays.client))

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""
        return self.delays.client

    def take(self, clients: IntArray | slice) -> "DelaysWithPoints[D_co]":
        """Return some of the clients."""
        return DelaysWithPoints(self.delays.take(clients), self.points[clients])

    def write(self: "DelaysWithPoints[MeasuredDelays]", path: str | Path) -> None:
        """Write measured delays to a file that `read_measured` turns into the same again."""
        self.delays.write(path, self.points)


Delays = DelayParameters | DelaysWithPoints[DelayDistribution] | DelayDistribution
"""Anything with a delay model: a `Fleet`, a model with points, or a model alone."""


def delays_of(fleet: Delays) -> DelayDistribution:
    """Return the delay model of a fleet, or the model itself."""
    if isinstance(fleet, DelayParameters):
        return FleetDelays(fleet)
    return fleet.delays if isinstance(fleet, DelaysWithPoints) else fleet


def delays_and_points(
    fleet: Delays, points: npt.ArrayLike | None = None
) -> tuple[DelayDistribution, FloatArray]:
    """Return a delay model, and the points of its clients: those given, else the fleet's own."""
    delays = delays_of(fleet)
    if points is not None:
        return delays, checked_points(points, delays.client)
    source = fleet.fleet if isinstance(fleet, FleetDelays) else fleet
    if isinstance(source, Fleet | DelaysWithPoints):
        return delays, source.points
    raise InputError("points are not given, and delays do not contain them: give points=…")
