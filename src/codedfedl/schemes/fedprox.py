"""`fedprox`: local steps that are pulled back to the round's model (Li et al., MLSys 2020)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.core.protocol import Info
from codedfedl.schemes.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Federated averaging with ½μ‖β − β₀‖² in the loss of every client.

    Parameters
    ----------
    proximal
        μ.
    local_steps, deadline, step, points, drop, optimiser
        As of `FedAvg`.
    """

    proximal: float = 0.01

    info: ClassVar[Info] = replace(
        FedAvg.info, name="fedprox", waits="without fedprox.deadline waits for all"
    )
