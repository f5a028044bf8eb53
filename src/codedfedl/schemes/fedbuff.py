"""`fedbuff`: a step after every K answers, whoever sends them (Nguyen et al., AISTATS 2022).

Clients never wait. An answer that is τ steps old counts 1/√(1 + τ). Every answer is one client's
mean gradient, all with the same weight, as published: fast clients answer more often, and if the
clients' data differ the model is biased towards theirs.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.core.protocol import Ask, Inbox, Info
from codedfedl.core.waiting import Next
from codedfedl.schemes.embedded_loads import EmbeddedState, EqualOrEmbedded
from codedfedl.schemes.settings import check_at_least_1


@dataclass(frozen=True)
class FedBuff(EqualOrEmbedded):
    """Buffered asynchronous aggregation.

    Parameters
    ----------
    buffer
        K, the number of answers per step; 10 in its paper.
    """

    buffer: int = 10

    info: ClassVar[Info] = replace(EqualOrEmbedded.info, name="fedbuff")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_1(self, "buffer")

    def ask_round(self, state: EmbeddedState) -> Ask:
        """Ask the idle clients; continue with the next answers, whichever model they are for."""
        count = min(self.buffer, state.task.clients)
        return self.asked(state, Next(count))

    def receive_round(self, state: EmbeddedState, inbox: Inbox) -> EmbeddedState:
        """Step along the mean of the buffer."""
        ages = np.array([state.round - reply.round for reply in inbox.replies])
        held = state.task.held[[reply.client for reply in inbox.replies]]
        total = sum(
            float(weight) * reply.arrays["gradient"]
            for weight, reply in zip(1 / np.sqrt(1 + ages) / held, inbox.replies, strict=True)
        )
        return state.descended(total, len(inbox.replies))
