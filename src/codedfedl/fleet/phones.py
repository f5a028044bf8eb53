"""A fleet of real phones, of any size, from measured figures.

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

import numpy as np

from codedfedl.arrays import FloatArray
from codedfedl.fleet.devices import Devices, Fleet, Workload, check_drawn

__all__ = ["MEDIAN_MAC_RATE", "phone_devices", "phone_fleet"]

_SHARES = np.array([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0])
_SCORES = np.array([105.0, 213, 274, 568, 1548, 2154, 3304, 3689, 4310])  # at these shares
_SIZES = np.array([25.0, 29, 31, 38, 60, 126, 251, 393, 2858])
MEDIAN_MAC_RATE = 1e9  # multiply-accumulates per second of the median phone
_WIFI_DOWN, _WIFI_UP = 8 * 5172e3, 8 * 3103e3  # bits per second, medians
_SPREAD_DOWN, _SPREAD_UP = 0.48, 0.70  # standard deviations of their logarithms
_CORRELATION = 0.45  # of the two logarithms
_LTE_UP = 4.53e6  # bits per second, the mean of a bursty uplink
_LTE_SHARE = 0.5  # of the phones; a phone on LTE is slower both ways by the same factor


def phone_devices(
    clients: int = 30, *, alpha: float = 2.0, erasure: float = 0.1, seed: int = 0
) -> Devices:
    """Draw phones: processors by their scores, half of the links Wi-Fi and half LTE.

    The first phones of a larger fleet with the same seed are those of a smaller one.
    """
    check_drawn(clients, seed)
    score, radio = np.random.default_rng([seed, 0]).random((clients, 2)).T
    down, own = np.random.default_rng([seed, 1]).standard_normal((clients, 2)).T
    up = _CORRELATION * down + np.sqrt(1 - _CORRELATION**2) * own
    slower = np.where(radio < _LTE_SHARE, _LTE_UP / _WIFI_UP, 1.0)
    return Devices(
        mac_rate=MEDIAN_MAC_RATE * _drawn(_SCORES, score) / np.median(_SCORES),
        bit_rate=slower * _WIFI_DOWN * np.exp(_SPREAD_DOWN * down),
        bit_rate_up=slower * _WIFI_UP * np.exp(_SPREAD_UP * up),
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
        held = np.floor(_drawn(_SIZES, share))
    return phone_devices(clients, seed=seed).fleet(workload or Workload(), held)


def _drawn(quantiles: FloatArray, share: FloatArray) -> FloatArray:
    """Return the values at some shares of a distribution, between quantiles on a log scale."""
    return np.exp(np.interp(share, _SHARES, np.log(quantiles)))
