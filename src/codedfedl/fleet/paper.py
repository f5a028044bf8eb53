"""The fleet of the paper's experiments (appendix A.2): an LTE cell with 30 unequal clients.

The paper leaves two constants out. Both were fitted to its Table 1: α = 2 for every client, and
2·q·c multiply-accumulates per point (see `Workload.point_macs`).
"""

import numpy as np

from codedfedl.fleet.devices import Devices, Fleet, Workload, check_drawn

__all__ = [
    "FIGURE_1_SECONDS",
    "figure_1_client",
    "paper_devices",
    "paper_fleet",
    "paper_result",
]

# Table 1: hours to 94.2% and 84.2%, and the gain over uncoded.
_TABLE_1 = {
    ("mnist", "uncoded", None): (505.0, 1.0),
    ("mnist", "coded", 0.1): (187.0, 2.70),
    ("fashion-mnist", "uncoded", None): (513.0, 1.0),
    ("fashion-mnist", "coded", 0.1): (216.0, 2.37),
}

FIGURE_1_SECONDS = 10.0
"""The waiting time t of the paper's figure 1(a)."""


def paper_devices(
    clients: int = 30,
    *,
    k1: float = 0.95,
    k2: float = 0.8,
    max_bit_rate: float = 216e3,
    max_mac_rate: float = 3.072e6,
    alpha: float = 2.0,
    erasure: float = 0.1,
    seed: int = 0,
) -> Devices:
    """Return link and processor speeds on two ladders, assigned to the clients at random.

    Parameters
    ----------
    k1, k2
        Ratio of one rung to the next: 1, k1, k1², … of `max_bit_rate` (bits per second), and
        1, k2, k2², … of `max_mac_rate` (multiply-accumulates per second).
    seed
        Of the two permutations.
    """
    check_drawn(clients, seed)
    rng = np.random.default_rng(seed)
    rungs = np.arange(clients)
    return Devices(
        bit_rate=max_bit_rate * k1 ** rng.permutation(rungs),
        mac_rate=max_mac_rate * k2 ** rng.permutation(rungs),
        alpha=alpha,
        erasure=erasure,
    )


def paper_fleet(points: float = 400, workload: Workload | None = None, *, seed: int = 0) -> Fleet:
    """Return the paper's fleet: 400 points per client in each mini-batch of 12,000.

    Examples
    --------
    >>> paper_fleet().total_points
    12000
    """
    return paper_devices(seed=seed).fleet(workload or Workload(), points)


def figure_1_client(alpha: float = 20.0) -> Fleet:
    """Return the client of the paper's figure 1: p = 0.9, τ = √3, μ = 2.

    The paper does not give α. At 20, every concave piece has its optimum inside it.
    """
    return Fleet(points=[1000], rate=2, alpha=alpha, packet_time=np.sqrt(3), erasure=0.9)


def paper_result(dataset: str, scheme: str, redundancy: float | None) -> tuple[float, float] | None:
    """Return the hours and the gain that the paper's Table 1 gives, where it has that row."""
    return _TABLE_1.get((dataset, scheme, redundancy))
