"""Which feature map, and how many features, for a wanted time from a cold start.

A more accurate map takes longer to embed, and more features make longer messages and need more
points. Which map is more accurate cannot be planned: the maps are given in that order. Each is
planned as for `coded-newton`, and the last one that finishes in time is chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.fleet.costs import BlockSetup
from codedfedl.fleet.devices import Fleet, Workload
from codedfedl.planning.cold_start import ColdStart, best_cold_start

__all__ = ["MapCost", "MapPlan", "best_map", "for_features", "plan_maps"]


@dataclass(frozen=True)
class MapCost:
    """A feature map as a plan sees it.

    Attributes
    ----------
    features
        q.
    macs
        Operations to embed a point.
    stride
        Of patches; None for other kinds.
    """

    kind: str
    features: int
    macs: int
    stride: int | None = None


@dataclass(frozen=True, eq=False)
class MapPlan:
    """A feature map, and the cold start that is planned with it."""

    map: MapCost
    plan: ColdStart

    @property
    def hours(self) -> float:
        """Predicted hours to the wanted excess."""
        return self.plan.seconds / 3600


def for_features(fleet: Fleet, workload: Workload, features: int) -> Fleet:
    """Return the same devices with a model of another number of features.

    The time of a point and of a packet is proportional to the number of features.
    """
    times = features / workload.features
    return replace(
        fleet,
        rate=fleet.rate / times,
        packet_time=fleet.packet_time * times,
        packet_time_up=fleet.packet_time_up * times,
    )


def plan_maps(
    fleet: Fleet,
    workload: Workload,
    held: npt.ArrayLike,
    maps: Sequence[MapCost],
    excess: float,
    mixing: int,
) -> list[MapPlan]:
    """Plan a cold start with each map.

    Parameters
    ----------
    fleet, workload
        The devices, and the model that their rates and packets are for.
    held : array of shape (n,)
        Total points of each client.
    excess
        Wanted relative excess of the objective.
    mixing
        Points mixed into every parity row.
    """
    plans = []
    for candidate in maps:
        devices = for_features(fleet, workload, candidate.features)
        work = replace(workload, features=candidate.features)
        ways = BlockSetup(work, candidate.macs, 1, mixing, bits=16).ways()
        plans.append(MapPlan(candidate, best_cold_start(devices, held, ways, excess)[0]))
    return plans


def best_map(plans: Sequence[MapPlan], hours: float) -> MapPlan:
    """Return the last plan, that of the most accurate map, that finishes in this many hours."""
    done = [plan for plan in plans if plan.hours <= hours]
    if not done:
        soonest = min(plan.hours for plan in plans)
        raise InputError(
            f"no feature map is trained within {hours:g} h: the soonest takes {soonest:.2g} h; "
            "give more time, or ask for a larger --excess"
        )
    return done[-1]
