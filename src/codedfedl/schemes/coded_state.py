"""What `coded` remembers: its plans, its parity, and what the rounds have shown.

Stand-ins: each client's own parity, kept apart, stands in for the client in rounds that it misses.

Parity of client j, with E[GᵀG] = I, has the expected gradient (1 − p_j)·A_j + B_j: A_j is the
gradient over the ℓ_j points that j processes, encoded with w² = 1 − p_j, and B_j that over its
other points, encoded with w² = 1. The server sees who answers. So it need not be right on average
over arrivals: it is right in every round, whoever is missing, for how long, and for any reason.

An answer for a model β′ and parity give the gradient over all n_j points,

    K_j(β′) = p_j·A_j(β′) + [(1 − p_j)·A_j(β′) + B_j(β′)]      the bracket being parity's,

or A_j(β′) alone, without parity, where j processes all its points. In a round with the model β that
j misses, parity carries it on, since the gradient of a quadratic is linear:

    K_j(β′) + f_j·X̆_jᵀX̆_j(β − β′),    f_j = n_j/Σw²,  Σw² = n_j − p_j·ℓ_j.

Before its first answer j counts f_j·X̆_jᵀ(X̆_jβ − Y̆_j). Where j processes all its points,
f_j = 1/(1 − p_j) undoes the weights exactly. Otherwise its points are in random order, so that w²
is Σw²/n_j on average for each of them, and f_j makes each count 1. Of the error of the code,
GᵀG − I, only what acts on X_j(β − β′) counts, which is 0 for a client that has just answered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from codedfedl.arrays import Array, FloatArray, Mask
from codedfedl.core.client import Gradient, WeightedGradient
from codedfedl.core.disclosure import Disclosed, needs_helper
from codedfedl.core.protocol import Reply
from codedfedl.core.task import Descent
from codedfedl.errors import InputError
from codedfedl.fitting.drift import Drift
from codedfedl.learning.codes import GAUSSIAN, Code
from codedfedl.learning.least_squares import ParityRows, Quadratic, gradient
from codedfedl.planning.plan import Plan

LARGEST_CHANCE = 0.95
"""No client is encoded as surer to answer: points that weigh 0 in parity could not be restored."""


def check_stand_in(
    scheme: str, stand_in: bool | None, disclosure: Disclosed, server_rate: float | None
) -> None:
    """Refuse what is neither true nor false, and true where there is no parity to keep apart."""
    if stand_in not in (None, False, True):
        raise InputError(f"{scheme}.stand_in is {stand_in!r}: must be true or false")
    if stand_in and needs_helper(disclosure):
        raise InputError(
            f"{scheme}.stand_in is true, which needs each client's own parity, and a secure sum "
            "hides it: leave out stand_in or secure"
        )
    if stand_in and server_rate is not None:
        raise InputError(
            f"{scheme}.stand_in is true and {scheme}.server_rate is {server_rate:g}, which is for "
            "composite parity: leave one out"
        )


def encoded_chances(made: Plan) -> FloatArray:
    """Return p_j, by which points are weighted in parity, shape (n,): the plan's, limited.

    K_j is the whole gradient for every p_j below 1, so the limit adds no bias.
    """
    return np.minimum(made.return_probabilities, LARGEST_CHANCE)


class Known(NamedTuple):
    """The gradient over all points of a client, and the model that it is for."""

    gradient: Array
    model: Array


@dataclass(frozen=True, eq=False)
class StandIns:
    """The clients of one mini-batch, as far as the server knows them.

    Attributes
    ----------
    made
        The plan that the parity was made for.
    parity
        Of each client that sent some.
    known
        Of each client that has answered, its newest gradient.
    """

    made: Plan
    parity: Mapping[int, ParityRows]
    known: Mapping[int, Known] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Iterable[Plan], replies: Iterable[Reply]) -> "tuple[StandIns, ...]":
        """Keep the parity that clients sent, of every mini-batch."""
        sent = {reply.client: reply.arrays for reply in replies}
        return tuple(
            cls(made, {j: ParityRows(a[f"features{b}"], a[f"targets{b}"]) for j, a in sent.items()})
            for b, made in enumerate(plans)
        )

    def work(self, batch: int) -> Gradient:
        """Return what clients are to do: p_j·A_j, or A_j where j processes all its points."""
        made = self.made
        weights = np.where(made.loads < made.points, encoded_chances(made), 1.0)
        plain = (weights[made.loads > 0] == 1).all()
        return Gradient(batch) if plain else WeightedGradient(batch, weights)

    def after(self, replies: Iterable[Reply], model: Array) -> "StandIns":
        """Return what is known after some answers for a model."""
        known = dict(self.known)
        for reply in replies:
            j, total = reply.client, reply.arrays["gradient"]
            if self.made.loads[j] < self.made.points[j]:
                parity = self.parity[j]
                total = total + gradient(parity.features, parity.targets, model)
            known[j] = Known(total, model)
        return replace(self, known=known)

    def gradient(self, model: Array, counted: Mask | None = None) -> Array:
        """Return the gradient over all points of all clients that count, as a sum.

        Parameters
        ----------
        counted : array of shape (n,)
            The clients whose answers do not contradict their parity; all of them, if None.
        """
        clients = sorted({*self.parity, *self.known})
        counting = (j for j in clients if counted is None or counted[j])
        return sum((self._of(j, model) for j in counting), start=0.0)

    def _of(self, j: int, model: Array) -> Array:
        """Return client j's gradient: its newest, carried on by its parity."""
        known, parity = self.known.get(j), self.parity.get(j)
        if known is not None and (known.model is model or parity is None):
            return known.gradient
        assert parity is not None
        if known is None:
            return self._factor(j) * gradient(parity.features, parity.targets, model)
        moved = parity.features.T @ (parity.features @ (model - known.model))
        return known.gradient + self._factor(j) * moved

    def _factor(self, j: int) -> float:
        """Return f_j, which makes j's parity stand for all its points."""
        points = float(self.made.points[j])
        squares = points - float(encoded_chances(self.made)[j]) * float(self.made.loads[j])
        return points / squares if points else 0.0


@dataclass(frozen=True, eq=False)
class CodedState(Descent):
    """The plans of all mini-batches, and the parity as quadratics once it is there.

    Attributes
    ----------
    parity
        Of every mini-batch, divided by the probability that the server finishes its gradient.
    stand_ins
        Of every mini-batch, where each client's own parity is kept apart instead.
    promised
        Hours and excess, where the plan is for hours.
    drift
        What the rounds have shown of the delays, where the plans follow them.
    counted : array of shape (n,), optional
        Clients whose points count; all by default.
    current
        The plans that the rounds follow: `plans`, for which the parity was made, until the delays
        turn out to be others.
    deadline : seconds, optional
        Of every round, where it is given.
    stand_in
        Whether each client's parity is kept apart.
    """

    plans: tuple[Plan, ...] = ()
    parity: tuple[Quadratic, ...] = ()
    stand_ins: tuple[StandIns, ...] = ()
    code: Code = GAUSSIAN
    promised: tuple[float, float] = (np.nan, np.nan)
    drift: Drift | None = None
    current: tuple[Plan, ...] = ()
    counted: Mask | None = None
    deadline: float | None = None
    stand_in: bool = False

    @property
    def checkpointed(self) -> bool:
        """Plans and parity are made in the set-up; plain descent changes the model alone.

        Plans and stand-ins, which follow the rounds, are brought back by playing these again.
        """
        return super().checkpointed and self.drift is None and not self.stand_ins

    @property
    def set_up(self) -> bool:
        """Whether the parity is there."""
        return bool(self.parity or self.stand_ins)
