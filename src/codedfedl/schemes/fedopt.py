"""`fedadam` and `fedyogi`: local steps, and an adaptive optimiser at the server.

Reddi et al., ICLR 2021: what the models have moved on average is taken for a gradient. With
β₁ = 0.9, β₂ = 0.99 and ε = 0.001, and without a correction of the first means, as published.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from codedfedl.core.protocol import Info
from codedfedl.schemes.fedavg import FedAvg


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """Federated averaging with Adam at the server.

    Parameters
    ----------
    optimiser, local_steps, deadline, step, points, drop, proximal
        As of `FedAvg`; the server's step is the schedule's, or `server_step`.
    """

    optimiser: str = "adam-uncorrected"

    info: ClassVar[Info] = replace(
        FedAvg.info, name="fedadam", waits="without fedadam.deadline waits for all"
    )


@dataclass(frozen=True)
class FedYogi(FedAvg):
    """Federated averaging with Yogi at the server.

    Parameters
    ----------
    optimiser, local_steps, deadline, step, points, drop, proximal
        As of `FedAdam`.
    """

    optimiser: str = "yogi-uncorrected"

    info: ClassVar[Info] = replace(
        FedAvg.info, name="fedyogi", waits="without fedyogi.deadline waits for all"
    )
