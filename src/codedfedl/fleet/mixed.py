"""Clients that follow the paper's delay model beside clients that follow no formula."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fleet.delays import Chance, FleetDelays
from codedfedl.fleet.measured import MeasuredChance, MeasuredDelays

__all__ = ["MixedChance", "MixedDelays"]


@dataclass(frozen=True, eq=False)
class MixedChance:
    """The `Chances` of `MixedDelays`: those of both models, for all clients."""

    formula: Chance
    measured: MeasuredChance

    def of_round(self, round_: int) -> "MixedChance":
        """Return the chances of one round."""
        return MixedChance(self.formula.of_round(round_), self.measured.of_round(round_))


@dataclass(frozen=True, eq=False)
class MixedDelays:
    """Clients that follow the paper's model, together with clients whose delays are measured.

    Parameters
    ----------
    formula, measured
        Two models, each of all n clients.
    follows : bool array of shape (n,)
        Which clients follow the formula; the others have measured delays.
    """

    formula: FleetDelays
    measured: MeasuredDelays
    follows: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        sizes = {len(self.formula.client), len(self.measured.client), len(self.follows)}
        if len(sizes) > 1:
            raise InputError(f"the two models have {sizes} clients: give both of the same clients")

    @property
    def client(self) -> npt.NDArray[Any]:
        """The clients' names, shape (n,)."""
        return self.formula.client

    @property
    def availability(self) -> FloatArray:
        """Probability that a reply ever arrives, shape (n,)."""
        return np.where(self.follows, self.formula.availability, self.measured.availability)

    def take(self, clients: IntArray | slice) -> "MixedDelays":
        """Return the same model for some of the clients."""
        formula, measured = self.formula.take(clients), self.measured.take(clients)
        return MixedDelays(formula, measured, self.follows[clients])

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        """P(T ≤ t) for loads and times that broadcast to shape (…, n)."""
        loads, t = (np.asarray(values, dtype=np.float64) for values in (loads, t))
        n = (len(self.follows),)
        loads, t = np.broadcast_arrays(*(np.broadcast_to(v, v.shape or n) for v in (loads, t)))
        result = np.empty(loads.shape)
        for model, part in ((self.formula, self.follows), (self.measured, ~self.follows)):
            who = np.flatnonzero(part)
            result[..., who] = model.take(who).cdf(loads[..., who], t[..., who])
        return result

    def sample(self, loads: npt.ArrayLike, rounds: int, rng: np.random.Generator) -> FloatArray:
        """Draw T for every round and client, shape (rounds, n); ∞ if no reply arrives."""
        return self.seconds(loads, self.draw(rounds, rng))

    def draw(self, rounds: int, rng: np.random.Generator) -> MixedChance:
        """Make the random draws of both models for all clients, whichever a client follows."""
        return MixedChance(self.formula.draw(rounds, rng), self.measured.draw(rounds, rng))

    def seconds(self, loads: npt.ArrayLike, chance: MixedChance) -> FloatArray:
        """T for the loads and chances, shape (…, n); ∞ if no reply arrives."""
        formula = self.formula.seconds(loads, chance.formula)
        return np.where(self.follows, formula, self.measured.seconds(loads, chance.measured))

    def bulk(
        self,
        work: npt.ArrayLike,
        packets: npt.ArrayLike,
        rng: np.random.Generator,
        *,
        per_point: float = 1.0,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the seconds of computing and of uploading, by each client's own model."""
        formula = self.formula.bulk(work, packets, rng, per_point=per_point)
        measured = self.measured.bulk(work, packets, rng, per_point=per_point)
        compute, upload = (
            np.where(self.follows, *both) for both in zip(formula, measured, strict=True)
        )
        return compute, upload

    def upload(self, packets: npt.ArrayLike, rng: np.random.Generator) -> FloatArray:
        """Draw the seconds of uploading packets, by each client's own model."""
        formula = self.formula.upload(packets, rng)
        return np.where(self.follows, formula, self.measured.upload(packets, rng))
