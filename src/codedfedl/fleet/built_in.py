"""The fleets that come with the package.

`paper` is the fleet of the paper's experiments (appendix A.2): an LTE cell with 30 unequal clients.
The paper leaves two constants out. Both were fitted to its Table 1: α = 2 for every client, and
2·q·c multiply-accumulates per point (see `Workload.point_macs`).

`phones` is a fleet of real phones, of any size, from measured figures:

| what | measured | source |
| --- | --- | --- |
| processor | floating-point scores of 333 phones | AI Benchmark 2020, by PKU-Chengxu/FLASH |
| Wi-Fi | mean speeds up and down of 19 phones | PKU-Chengxu/FLASH |
| LTE | five seconds of an uplink | ravinet/mahimahi |
| points | sizes of 1,262 clients of federated Landmarks | Erosinho13/Fed3R |

Only quantiles and the parameters of log-normal distributions are kept. Scores are relative: the
median phone is assumed to compute 10⁹ multiply-accumulates per second, as plain single-precision
code does. Also assumed, not measured: half of the phones use LTE; α and the erasure probability
are the paper's.
"""

from pathlib import Path

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Devices, Fleet, Workload, check_drawn
from codedfedl.io.names import member_of, nearest

BUILT_IN = ("paper", "phones")

_FLEET_SETTINGS = ("clients", "k1", "k2", "alpha", "erasure")


def void_settings(name: str) -> tuple[str, ...]:
    """Return the settings of built-in fleets that do not apply to this fleet."""
    if name == "paper":
        return ()
    return ("k1", "k2") if name == "phones" else _FLEET_SETTINGS  # a file says all of it itself


def built_in_devices(
    name: str, clients: int, *, k1: float, k2: float, alpha: float, erasure: float, seed: int
) -> Devices:
    """Return the devices of a built-in fleet."""
    if name == "phones":
        return phone_devices(clients, alpha=alpha, erasure=erasure, seed=seed)
    return paper_devices(clients, k1=k1, k2=k2, alpha=alpha, erasure=erasure, seed=seed)


def built_in_fleet(
    name: str, clients: int | None, points: float | None, workload: Workload, seed: int
) -> Fleet:
    """Return a built-in fleet with its own points, or with those that are given."""
    clients = 30 if clients is None else clients
    if name == "phones":
        return phone_fleet(clients, points, workload, seed=seed)
    return paper_devices(clients, seed=seed).fleet(workload, 400 if points is None else points)


def check_fleet_name(name: str) -> None:
    """Refuse a word that is neither a file nor a built-in fleet, perhaps misspelt."""
    if name not in BUILT_IN and not Path(name).suffix and not Path(name).exists():
        raise InputError(
            f"the fleet {name!r} is neither a file that ends in .csv or .parquet, nor a delay "
            "model of your own, as module:model, nor a known name: "
            f"{nearest(name, list(BUILT_IN))}"
        )


def own_delays(name: str) -> DelayModel | None:
    """Return the delay model that a user's file has, ``module:model``; None for other names."""
    if ":" not in name or Path(name).exists():
        return None
    delays = member_of(name, "fleet")
    if not isinstance(delays, DelayModel):
        raise InputError(f"fleet {name!r} is {delays!r:.60}: must be a codedfedl.DelayModel")
    return delays


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


_QUANTILES = np.array([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0])
_SCORE_QUANTILES = np.array([105.0, 213, 274, 568, 1548, 2154, 3304, 3689, 4310])  # at these shares
_POINTS_QUANTILES = np.array([25.0, 29, 31, 38, 60, 126, 251, 393, 2858])
MEDIAN_MAC_RATE = 1e9  # multiply-accumulates per second of the median phone
_WIFI_BIT_RATE_DOWN, _WIFI_BIT_RATE_UP = 8 * 5172e3, 8 * 3103e3  # bits per second, medians
_SPREAD_DOWN, _SPREAD_UP = 0.48, 0.70  # standard deviations of their logarithms
_CORRELATION = 0.45  # of the two logarithms
_LTE_BIT_RATE_UP = 4.53e6  # bits per second, the mean of a bursty uplink
_LTE_SHARE = 0.5  # of the phones; a phone on LTE is slower both ways by the same factor


def phone_devices(
    clients: int = 30, *, alpha: float = 2.0, erasure: float = 0.1, seed: int = 0
) -> Devices:
    """Draw phones: processors by their scores, half of the links Wi-Fi and half LTE.

    The first phones of a larger fleet with the same seed are those of a smaller one.
    """
    check_drawn(clients, seed)
    score, radio = np.random.default_rng([seed, 0]).random((clients, 2)).T
    down, independent = np.random.default_rng([seed, 1]).standard_normal((clients, 2)).T
    up = _CORRELATION * down + np.sqrt(1 - _CORRELATION**2) * independent
    slower = np.where(radio < _LTE_SHARE, _LTE_BIT_RATE_UP / _WIFI_BIT_RATE_UP, 1.0)
    return Devices(
        mac_rate=MEDIAN_MAC_RATE * _drawn(_SCORE_QUANTILES, score) / np.median(_SCORE_QUANTILES),
        bit_rate=slower * _WIFI_BIT_RATE_DOWN * np.exp(_SPREAD_DOWN * down),
        bit_rate_up=slower * _WIFI_BIT_RATE_UP * np.exp(_SPREAD_UP * up),
        alpha=alpha,
        erasure=erasure,
    )


def phone_fleet(
    clients: int = 30,
    points: float | None = None,
    workload: Workload | None = None,
    *,
    seed: int = 0,
) -> Fleet:
    """Return phones with the points of a public federation's clients, or as many as are given.

    Examples
    --------
    >>> fleet = phone_fleet(1000)
    >>> len(fleet), int(np.median(fleet.points))
    (1000, 54)
    """
    held: FloatArray | float | None = points
    if held is None:
        share = np.random.default_rng([seed, 2]).random(clients)
        held = np.floor(_drawn(_POINTS_QUANTILES, share))
    return phone_devices(clients, seed=seed).fleet(workload or Workload(), held)


def _drawn(quantiles: FloatArray, share: FloatArray) -> FloatArray:
    """Return the values at some shares of a distribution, between quantiles on a log scale."""
    return np.exp(np.interp(share, _QUANTILES, np.log(quantiles)))
