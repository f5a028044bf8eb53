"""How much of the paper's gain rests on the constant that it leaves out."""

from codedfedl.fleet.built_in import paper_devices
from codedfedl.fleet.devices import Workload
from codedfedl.fleet.maximum import expected_maximum
from codedfedl.planning.plan import plan

__all__ = ["gain_by_alpha"]


def gain_by_alpha(
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 20.0), redundancy: float = 0.1
) -> dict[float, float]:
    """Return the gain per round over waiting for all, for several values of the fitted constant."""
    gains = {}
    for alpha in alphas:
        fleet = paper_devices(alpha=alpha).fleet(Workload(), 400)
        waiting = expected_maximum(fleet, fleet.points)
        gains[alpha] = waiting / plan(fleet, redundancy).deadline
    return gains
