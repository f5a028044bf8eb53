"""What `coded` remembers: its plans, its parity, and what the rounds have shown."""

from dataclasses import dataclass

import numpy as np

from codedfedl.arrays import Mask
from codedfedl.core.task import Descent
from codedfedl.fitting.drift import Drift
from codedfedl.learning.codes import GAUSSIAN, Code
from codedfedl.learning.least_squares import Quadratic
from codedfedl.planning.plan import Plan
from codedfedl.schemes.stand_in import StandIns


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
