"""The planner: complete plans of a million clients against SciPy, one minimisation per piece.

Run with `python -m benchmarks.planner [clients]`. SciPy plans 200 random clients of the same fleet,
to the same tolerance, in the same run.
"""

import resource
import sys
import time

import numpy as np
from scipy.optimize import bisect, brentq
from tests.naive import deadline_by_scipy

from codedfedl import Fleet, minimum_deadline, plan

SCIPY_CLIENTS = 200


def random_fleet(
    n: int,
    erasure: tuple[float, float],
    packet_time: tuple[float, float],
    own_uplink: bool = False,
) -> Fleet:
    """Draw rates over two decades, α over one and a half, and log-uniform packet times."""
    rng = np.random.default_rng(0)

    def spread(low: float, high: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.exp(rng.uniform(np.log(low), np.log(high), n))

    return Fleet(
        points=rng.integers(50, 1000, n),
        rate=spread(0.1, 10),
        alpha=spread(0.3, 10),
        packet_time=spread(*packet_time),
        erasure=rng.uniform(*erasure, n),
        packet_time_up=spread(*packet_time) if own_uplink else None,
        erasure_up=rng.uniform(*erasure, n) if own_uplink else None,
    )


def seconds_to_plan(fleet: Fleet) -> float:
    begin = time.perf_counter()
    plan(fleet, redundancy=0.1)
    return time.perf_counter() - begin


def against_scipy(name: str, fleet: Fleet, scipy_clients: int = SCIPY_CLIENTS) -> None:
    ours = seconds_to_plan(fleet) / len(fleet)
    chosen = np.random.default_rng(1).choice(len(fleet), scipy_clients, replace=False)
    few = fleet.take(np.sort(chosen))
    target = 0.9 * few.points.sum()
    deadline = minimum_deadline(few, target, whole=False).t
    print(f"{name}: {len(fleet):,} clients")
    print(f"  ours           {ours * 1e6:12.2f} µs a client, {ours * len(fleet):.2f} s in all")
    for root_finder in (bisect, brentq):
        begin = time.perf_counter()
        theirs_deadline = deadline_by_scipy(few, target, root_finder)
        theirs = (time.perf_counter() - begin) / scipy_clients
        apart = abs(deadline / theirs_deadline - 1)
        print(
            f"  SciPy, {root_finder.__name__:7} {theirs * 1e6:12,.0f} µs a client on "
            f"{scipy_clients}: {theirs / ours:8,.0f} times ours; deadlines {apart:.0e} apart"
        )


def growth(largest: int) -> None:
    print("Growth with the number of clients")
    for n in (largest // 100, largest // 10, largest):
        seconds = seconds_to_plan(random_fleet(n, (0.0, 0.3), (0.1, 10)))
        print(f"  {n:10,} clients  {seconds:7.3f} s  {seconds / n * 1e6:6.2f} µs a client")


def links_that_differ(largest: int) -> None:
    print("Uplinks of their own")
    for n, erasure in ((largest, (0.0, 0.3)), (largest // 3, (0.99, 0.99))):
        seconds = seconds_to_plan(random_fleet(n, erasure, (0.1, 10), own_uplink=True))
        print(f"  {n:10,} clients, erasure up to {erasure[1]}  {seconds:7.3f} s")


def main(n: int = 1_000_000) -> None:
    against_scipy("Erasure up to 0.3", random_fleet(n, (0.0, 0.3), (0.1, 10)))
    slow_links = random_fleet(n, (0.0, 0.3), (30, 300))
    against_scipy("Erasure up to 0.3, packets that take long", slow_links)
    lossy = random_fleet(n, (0.9, 0.9), (0.005, 0.5))
    against_scipy("Erasure 0.9, packet times far below the deadline", lossy, 5)
    lossier = random_fleet(n, (0.99, 0.99), (0.1, 10))
    against_scipy("Erasure 0.99, thousands of transmissions", lossier, 2)
    links_that_differ(n // 10)
    growth(n)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"Peak memory of this run: {peak:.2f} GiB")


if __name__ == "__main__":
    main(*(int(float(argument)) for argument in sys.argv[1:]))
