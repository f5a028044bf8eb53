"""What may be done to the replies that a strategy gets."""

from dataclasses import dataclass
from typing import Any

from flwr.serverapp import strategy as stock

__all__ = ["Treatment", "treatment_of"]


@dataclass(frozen=True)
class Treatment:
    """How a strategy is paced.

    Attributes
    ----------
    factors
        Whether updates may be weighed by 1/π: for weighted means, which stay unbiased.
    resumes
        Whether a run can be continued.
    key
        The metric with the weight of a reply.
    why
        The reason for less than everything; empty otherwise.
    waits
        Whether every round must wait for all.
    """

    factors: bool
    resumes: bool
    key: str
    why: str = ""
    waits: bool = False


_DP = "clips updates and adds noise for answers as they are: factors would void its guarantee"
_TREES = "collects trees, which have no mean"
_ORDER = "compares answers with one another, and factors would make outliers of slow nodes"
_OTHERS = {
    "FedMedian": (_ORDER, True),
    "FedTrimmedAvg": (_ORDER, True),
    "MultiKrum": (_ORDER, True),  # and Krum
    "Bulyan": (_ORDER, True),
    "QFedAvg": ("weighs answers by their losses, which factors do not change", False),
    "FedXgbBagging": (_TREES, False),
    "FedXgbCyclic": (_TREES, False),
    "DifferentialPrivacyServerSideFixedClipping": (_DP, False),
    "DifferentialPrivacyClientSideFixedClipping": (_DP, False),
    "DifferentialPrivacyServerSideAdaptiveClipping": (_DP, False),
    "DifferentialPrivacyClientSideAdaptiveClipping": (_DP, False),
}
"""Stock strategies that are no weighted mean: why, and whether equal answers lead to themselves."""


def treatment_of(strategy: Any | None) -> Treatment:
    """Return how a strategy is paced; without one, as a weighted mean by `num-examples`."""
    inner = getattr(strategy, "strategy", strategy)  # a wrapper's weights are those inside
    key = str(getattr(inner, "weighted_by_key", "num-examples"))
    for name, (why, resumes) in _OTHERS.items():
        if isinstance(strategy, getattr(stock, name, ())):
            waits = "Adaptive" in name  # it divides by the number of answers: no round may be empty
            return Treatment(False, resumes, key, f"{type(strategy).__name__} {why}", waits)
    if strategy is None or isinstance(strategy, stock.FedAvg):
        return Treatment(True, True, key)
    why = "is not known to take a weighted mean; pass factors=True if it does"
    return Treatment(False, False, key, f"{type(strategy).__name__} {why}")
