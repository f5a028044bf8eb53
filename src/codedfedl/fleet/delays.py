"""How long a client takes: the delay model of section 2.2, and what every other model must say.

A round costs client j the time T = overhead + ℓ̃/μ + Exp(αμ/ℓ̃) + N_d·τ_d + N_u·τ_u, with geometric
N_d and N_u; with probability 1 − availability it does not answer at all (T = ∞).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.columns import Columns, checked_points
from codedfedl.fleet.round_time import asymmetric_cdf, symmetric_cdf

FOREVER = 1e150
"""Seconds after which every client that takes part has answered."""

TIME_PARTS = ("compute_s", "link_s", "retransmission_s", "overhead_s")
"""Where the time of a round goes: the parts of `DelayModel.mean_parts`."""


@dataclass(frozen=True, eq=False)
class Chances:
    """The random part of the delays, drawn before the loads are known.

    The same chances serve any loads, so that schemes can be compared on the same luck. `draws` are
    arrays of shape (rounds, n) by the names that the model gave them, or chances themselves.
    """

    draws: Mapping[str, Any]

    def __getitem__(self, rounds: int | slice) -> "Chances":
        """Return the chances of one round, in arrays of shape (n,), or of several."""
        return Chances({name: values[rounds] for name, values in self.draws.items()})


class DelayModel(ABC):
    """How long clients take: whatever a planner and a simulator know of it.

    A model of your own derives from this class. `client`, `cdf` and `take` suffice to plan with
    it, and `draw` and `seconds` to simulate rounds; `bulk` and `upload` are for schemes with a
    set-up, and `points_within` for schemes with windows. `cdf` must not rise with the load, and
    must not fall with t.

    Attributes
    ----------
    client : array of shape (n,)
        The clients' names.
    points : array of shape (n,), optional
        Points per round of each client, where the model knows them.
    """

    client: npt.NDArray[Any]
    points: FloatArray | None = None

    @abstractmethod
    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t) for loads and times that broadcast to shape (…, n)."""

    @property
    def parameters(self) -> "DelayParameters | None":
        """The paper's parameters, where all clients follow its formula."""
        return None

    @abstractmethod
    def take(self, clients: IntArray | slice) -> Self:
        """Return the same model for some of the clients."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.client)

    @cached_property
    def availability(self) -> FloatArray:
        """Probability that a reply ever arrives, shape (n,)."""
        return self.cdf(np.ones(len(self)), FOREVER)

    def mean(self, loads: npt.ArrayLike) -> FloatArray:
        """E[T] of a client that takes part, seconds, shape (…, n)."""
        raise self._lacks("mean", "mean delays")

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        """Make the random draws of every round and client; they serve any loads."""
        raise self._lacks("draw and seconds", "simulated rounds")

    def seconds(self, loads: npt.ArrayLike, chance: Chances) -> FloatArray:
        """T for the loads and chances that this model drew, shape (…, n); ∞ if no reply comes."""
        raise self._lacks("draw and seconds", "simulated rounds")

    def points_within(self, window: npt.ArrayLike, chance: Chances) -> IntArray:
        """Points that the processor finishes in `window` seconds, by the chances of its delays.

        It is the largest load whose computation, without link or overhead, lasts no longer.
        """
        raise self._lacks("points_within", "windows")

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw T for every round and client, shape (rounds, n); ∞ if no reply comes."""
        return self.seconds(loads, self.draw(rounds, rng))

    def bulk(
        self, work: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading for a step outside the rounds.

        Parameters
        ----------
        work
            What is computed, in gradients of a point, shape (n,). It is done once, without a
            model download.
        packets
            Packets to upload, each of the size of a model, shape (n,).

        Returns
        -------
        compute, upload : arrays of shape (n,)
        """
        raise self._lacks("bulk and upload", "a simulated set-up")

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets beside those of a round, shape (n,)."""
        raise self._lacks("bulk and upload", "a simulated set-up")

    def mean_parts(self, loads: FloatArray, chances: Chances) -> dict[str, FloatArray]:
        """Return each client's `rate`, and where its time went on average over some rounds.

        The parts are `TIME_PARTS`; NaN where the model does not tell them apart.
        """
        return {name: np.full(len(self), np.nan) for name in ("rate", *TIME_PARTS)}

    def slowed(self, factor: npt.ArrayLike) -> "DelayModel":
        """Return clients for which everything takes `factor` times as long, shape (n,)."""
        raise self._lacks("slowed", "slower clients")

    def _lacks(self, methods: str, needed_for: str) -> InputError:
        return InputError(
            f"{type(self).__name__} has no {methods}, which {needed_for} need: define them, or "
            "give a fleet or measured delays"
        )


def points_of(delays: DelayModel, points: npt.ArrayLike | None = None) -> FloatArray:
    """Return the points per round of each client: those given, else the model's own."""
    if points is not None:
        return checked_points(points, delays.client)
    if delays.points is None:
        raise InputError("points are not given, and delays do not contain them: give points=…")
    return delays.points


@dataclass(frozen=True, eq=False, init=False)
class DelayParameters(Columns, DelayModel):
    """The paper's delay model: how long one point and one packet take on each client.

    Parameters
    ----------
    rate, alpha, packet_time, erasure, packet_time_up, erasure_up, overhead, availability, client
        As in `Fleet`, which adds the number of points.

    Examples
    --------
    >>> clients = DelayParameters(rate=[2], alpha=2, packet_time=3, erasure=0.1)
    >>> clients.cdf(loads=[400], t=300).round(3)
    array([0.607])
    """

    rate: FloatArray
    alpha: FloatArray
    packet_time: FloatArray
    erasure: FloatArray
    packet_time_up: FloatArray
    erasure_up: FloatArray
    overhead: FloatArray
    availability: FloatArray

    def __init__(
        self,
        *,
        rate: npt.ArrayLike,
        alpha: npt.ArrayLike,
        packet_time: npt.ArrayLike,
        erasure: npt.ArrayLike,
        packet_time_up: npt.ArrayLike | None = None,
        erasure_up: npt.ArrayLike | None = None,
        overhead: npt.ArrayLike = 0.0,
        availability: npt.ArrayLike = 1.0,
        client: npt.ArrayLike | None = None,
    ) -> None:
        self._check_and_store(locals())

    @property
    def parameters(self) -> Self:
        """These."""
        return self

    @property
    def symmetric(self) -> npt.NDArray[np.bool_]:
        """Which clients have equal uplink and downlink, shape (n,)."""
        same = (self.packet_time == self.packet_time_up) & (self.erasure == self.erasure_up)
        return np.asarray(same)

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t), exactly; a load of 0 leaves only the link."""
        time = np.asarray(t, dtype=np.float64) - self.overhead
        compute = np.asarray(loads, dtype=np.float64) / self.rate
        time, compute = np.broadcast_arrays(time, compute)
        symmetric = self.symmetric
        if symmetric.all():
            return self.availability * symmetric_cdf(self, time, compute)
        result = np.empty(time.shape)
        for part, cdf in ((symmetric, symmetric_cdf), (~symmetric, asymmetric_cdf)):
            clients = np.flatnonzero(part)
            result[..., clients] = cdf(
                self.take(clients), time[..., clients], compute[..., clients]
            )
        return self.availability * result

    def mean(self, loads: npt.ArrayLike) -> FloatArray:
        """E[T] of a client that takes part, seconds, shape (…, n)."""
        compute = np.asarray(loads, dtype=np.float64) / self.rate * (1 + 1 / self.alpha)
        down = self.packet_time / (1 - self.erasure)
        up = self.packet_time_up / (1 - self.erasure_up)
        return np.asarray(self.overhead + compute + down + up, dtype=np.float64)

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        """Draw the processors' slowness, the transmissions each way, and who is absent."""
        shape = (rounds, len(self))
        slowness = rng.standard_exponential(shape)
        down = rng.geometric(1 - self.erasure, shape)
        up = rng.geometric(1 - self.erasure_up, shape)
        absent = rng.random(shape) >= self.availability
        return Chances({"slowness": slowness, "down": down, "up": up, "absent": absent})

    def seconds(self, loads: npt.ArrayLike, chance: Chances) -> FloatArray:
        """T for the loads and the random draws, shape (…, n); ∞ if a client is absent."""
        compute = np.asarray(loads, dtype=np.float64) / self.rate
        total = np.asarray(chance.draws["slowness"] * (compute / self.alpha))
        total += compute + self.overhead
        total += self.packet_time * chance.draws["down"]
        total += self.packet_time_up * chance.draws["up"]
        total[chance.draws["absent"]] = np.inf
        return total

    def points_within(self, window: npt.ArrayLike, chance: Chances) -> IntArray:
        """⌊w·μ/(1 + E)⌋ points, with one draw of E ~ Exp(rate α) a round."""
        most = np.asarray(window, dtype=np.float64) * self.rate
        return np.asarray(most / (1 + chance.draws["slowness"] / self.alpha)).astype(np.int64)

    def bulk(
        self, work: npt.ArrayLike, packets: npt.ArrayLike, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw a step outside the rounds, to which overhead and availability do not apply."""
        compute = np.asarray(work, dtype=np.float64) / self.rate
        compute = compute * (1 + rng.standard_exponential(len(self)) / self.alpha)
        return compute, self.upload(packets, rng)

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets, each sent until it arrives, shape (n,)."""
        packets = np.asarray(packets, dtype=np.int64)
        losses = rng.negative_binomial(np.maximum(packets, 1), 1 - self.erasure_up)
        sent = np.where(packets > 0, packets + losses, 0)
        return np.asarray(sent * self.packet_time_up, dtype=np.float64)

    def mean_parts(self, loads: FloatArray, chances: Chances) -> dict[str, FloatArray]:
        """Return each client's rate, and where its time went on average over some rounds."""
        asked = loads > 0
        slowness, down, up = (chances.draws[name].mean(0) for name in ("slowness", "down", "up"))
        retries = (down - 1) * self.packet_time + (up - 1) * self.packet_time_up
        return {
            "rate": self.rate,
            "compute_s": loads / self.rate * (1 + slowness / self.alpha),
            "link_s": np.where(asked, self.packet_time + self.packet_time_up, 0.0),
            "retransmission_s": np.where(asked, retries, 0.0),
            "overhead_s": np.where(asked, self.overhead, 0.0),
        }

    def slowed(self, factor: npt.ArrayLike) -> Self:
        """Return clients for which everything takes `factor` times as long, shape (n,)."""
        factor = np.asarray(factor, dtype=np.float64)
        return replace(
            self,
            rate=self.rate / factor,
            packet_time=self.packet_time * factor,
            packet_time_up=self.packet_time_up * factor,
            overhead=self.overhead * factor,
        )
