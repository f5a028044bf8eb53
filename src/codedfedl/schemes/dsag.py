"""`dsag`: stale and fresh gradients mixed (Severinson, Rosnes and Graell i Amat, arXiv 2111.13877).

DSAG is SAG's table for stragglers: a round waits for w of the n clients; a late client keeps
working, and its answer enters the table when it arrives, as a gradient of the old model. Until all
clients have answered, the step is along those that have. Loads are balanced by speed, once; its
authors rebalance during the run. The step is as in `mifa`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.core.protocol import Ask, Info
from codedfedl.schemes.mifa import MIFA, TableState


@dataclass(frozen=True)
class DSAG(MIFA):
    """Wait for the fastest of those asked now, and use late answers.

    Parameters
    ----------
    drop
        1 − w/n: share of the clients that a round does not wait for, as in `greedy`.
    """

    info: ClassVar[Info] = replace(MIFA.info, name="dsag")

    def ask_round(self, state: TableState) -> Ask:
        """Ask the idle clients."""
        return self.asked(state, self.awaited(state.task))
