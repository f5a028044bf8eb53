"""Estimates of the parts of a delay: work with a random part, links, and availability.

Every function takes many samples at once along the leading axes, so that a bootstrap is one call.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from codedfedl.arrays import FloatArray
from codedfedl.fleet.delays import DelayParameters

CONFIDENCE = 0.95
TAILS = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
"""The quantiles between which an interval lies."""

Shape = Literal["line", "per point", "fixed"]
"""What the certain part of the work may be: c + a·ℓ̃, or a·ℓ̃ alone, or c alone."""

_ASSUMED_ALPHA = 2.0  # the paper's, where the measurements say nothing of the spread
_LATTICE_TOLERANCE = 0.02  # of a packet's time: how far a link's seconds may be from a multiple
_MAX_EM_STEPS = 100
_EM_TOLERANCE = 1e-6
_MAX_AVAILABILITY = 1 - 1e-12
_LEAST_SPREAD_SHARE = 1e-9  # of the time, where all times are the same


@dataclass(frozen=True, eq=False)
class MissingReplies:
    """Measurements that never came back, m of them.

    Attributes
    ----------
    load, limit : shape (m,)
        Points asked for, and how long each was waited for (or ∞).
    times : shape (…, m)
        How often each counts.
    """

    load: FloatArray
    limit: FloatArray
    times: FloatArray


@dataclass(frozen=True, eq=False)
class WorkFit:
    """Y = fixed + per_point·ℓ̃ + Exp(mean spread·ℓ̃), and the probability that the client answers.

    All arrays have the shape of the samples' leading axes.

    Attributes
    ----------
    fixed : seconds
    per_point, spread : seconds per point
    availability
    freedom : measurements beyond those that the certain part uses up; at 0 the spread is unknown
    """

    fixed: FloatArray
    per_point: FloatArray
    spread: FloatArray
    availability: FloatArray
    freedom: FloatArray

    def at(self, load: FloatArray) -> FloatArray:
        """Return the certain seconds that loads take, shape (…, n)."""
        return self.fixed[..., None] + self.per_point[..., None] * load

    def draw(self, load: FloatArray, limit: FloatArray, luck: FloatArray) -> FloatArray:
        """Turn uniform numbers into times that are below a limit (or ∞), shape (…, n)."""
        mean = self.spread[..., None] * load
        surely = -np.expm1(-np.maximum(limit - self.at(load), 0.0) / mean)
        return self.at(load) - mean * np.log1p(-luck * surely)


def fit_work(
    load: FloatArray,
    seconds: FloatArray,
    missing: MissingReplies,
    shape: Shape,
    *,
    bounded: bool = True,
) -> WorkFit:
    """Fit Y = c + a·ℓ̃ + Exp(mean θ·ℓ̃) to samples of n measurements each.

    Whatever θ is, the likelihood is largest for the line below all points that is highest at the
    loads' harmonic mean. θ then is the mean of (Y − line)/ℓ̃, with as many measurements taken off
    as touch the line, and the line is lowered in proportion, until it leaves θ to the mean.

    A missing reply was either absent or late. The share of late ones and θ are fitted together, by
    expectation maximisation.

    Parameters
    ----------
    load : shape (n,)
    seconds : shape (…, n)
    bounded
        Whether c and a must be at least 0. If not, the line stays where it touches: then its error
        in units of θ has a distribution that does not depend on any parameter.
    """
    fixed, per_point, touched = _highest_line(load, seconds, shape, bounded)
    inverse = float(np.mean(1 / load))
    height = fixed * inverse + per_point  # of the line, seconds per point
    above = (seconds / load).sum(-1) - len(load) * height
    freedom = len(load) - touched
    identified = freedom > 0
    spread, availability = _with_missing(
        above / np.maximum(freedom, 1), np.maximum(freedom, 1), len(load), fixed, per_point, missing
    )
    spread = np.where(identified, spread, height / (1 + _ASSUMED_ALPHA))
    spread = np.maximum(spread, _LEAST_SPREAD_SHARE * np.abs(height))
    if bounded:
        lower = np.where(identified, spread * touched / len(load), spread)
        keep = np.maximum(1 - lower / height, 0.0)
        fixed, per_point = fixed * keep, per_point * keep
    return WorkFit(fixed, per_point, spread, availability, freedom)


def _highest_line(
    load: FloatArray, seconds: FloatArray, shape: Shape, bounded: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return c and a of the line below all points that is highest at their harmonic mean load.

    Beside them, how many points it touches: one for each of c and a that is free.
    """
    none, single = np.zeros(seconds.shape[:-1]), np.ones(seconds.shape[:-1])
    flat = seconds.min(-1)
    steep = (seconds / load).min(-1)
    if shape == "fixed":
        return flat, none, single
    if shape == "per point":
        return none, steep, single
    per_point = _slope(load, seconds)
    fixed = (seconds - per_point[..., None] * load).min(-1)
    if not bounded:
        return fixed, per_point, 2 * single
    falls, negative = per_point < 0, fixed < 0
    touched = np.where(falls | negative, 1.0, 2.0)
    fixed = np.where(falls, flat, np.where(negative, 0.0, fixed))
    return fixed, np.where(falls, 0.0, np.where(negative, steep, per_point)), touched


def _slope(load: FloatArray, seconds: FloatArray) -> FloatArray:
    """Find the edge of the lower convex hull at the harmonic mean load.

    Begin with the outermost loads. While a point lies below the line through one point on either
    side, the lowest of them takes the place of the one on its own side.
    """
    middle = 1 / np.mean(1 / load)
    each = (
        np.where(load == load.min(), seconds, np.inf),
        np.where(load == load.max(), seconds, np.inf),
    )
    left, right = (np.argmin(side, axis=-1) for side in each)
    while True:
        pick = [np.take_along_axis(seconds, i[..., None], -1)[..., 0] for i in (left, right)]
        slope: FloatArray = (pick[1] - pick[0]) / (load[right] - load[left])
        gap = seconds - slope[..., None] * load
        lowest = np.argmin(gap, axis=-1)
        gained = pick[0] - slope * load[left] - gap.min(-1)
        better = gained > 1e-12 * np.abs(seconds).max(-1)
        if not better.any():
            return slope
        on_the_left = load[lowest] <= middle
        left = np.where(better & on_the_left, lowest, left)
        right = np.where(better & ~on_the_left, lowest, right)


def _with_missing(
    spread: FloatArray,
    freedom: FloatArray,
    came: int,
    fixed: FloatArray,
    per_point: FloatArray,
    missing: MissingReplies,
) -> tuple[FloatArray, FloatArray]:
    """Return θ and the availability, with what never came back as absent or late."""
    total = came + missing.times.sum(-1)
    known = np.isfinite(missing.limit)
    (load, limit), times = _alike(missing, known)
    availability = np.broadcast_to(np.minimum(came / total, _MAX_AVAILABILITY), spread.shape)
    if not known.any():
        return spread, np.broadcast_to(came / total, spread.shape)
    above = spread * freedom
    line = fixed[..., None] + per_point[..., None] * load
    waited = np.maximum(limit - line, 0.0) / load  # seconds per point beyond the certain part
    for _ in range(_MAX_EM_STEPS):
        before = spread
        late = np.exp(-waited / np.maximum(spread, 1e-300)[..., None])
        there = availability[..., None] * late
        late = times * there / (1 - availability[..., None] + there)  # given that nothing came
        availability = np.minimum((came + late.sum(-1)) / total, _MAX_AVAILABILITY)
        spread = (above + (late * waited).sum(-1)) / freedom
        if np.all(np.abs(spread - before) <= _EM_TOLERANCE * spread):
            break
    return spread, availability


def _alike(missing: MissingReplies, known: npt.NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Return the different pairs of load and limit, and how often each counts: (2, k), (…, k)."""
    pairs = np.stack([missing.load[known], missing.limit[known]])
    different, group = np.unique(pairs, axis=1, return_inverse=True)
    belongs = group.reshape(-1)[:, None] == np.arange(different.shape[1])
    return different, missing.times[..., known] @ belongs.astype(np.float64)


@dataclass(frozen=True, eq=False)
class LinkFit:
    """One direction of a link: τ, p and their intervals; `hidden` where no retry can be seen."""

    packet_time: float
    erasure: float
    packet_time_interval: FloatArray
    erasure_interval: FloatArray
    hidden: bool


def fit_link(seconds: FloatArray, retries: FloatArray | None) -> LinkFit:
    """Fit τ and p to the seconds that one direction took, shape (n,).

    Where retries are not known, the seconds must lie on the multiples of the smallest of them.
    """
    n = len(seconds)
    sent = None if retries is None else retries + 1
    if sent is None and seconds.min() > 0:
        near = np.round(seconds / seconds.min())
        tau = seconds.sum() / near.sum()
        sent = near if np.all(np.abs(seconds - tau * near) <= _LATTICE_TOLERANCE * tau) else None
    hidden = sent is None
    counts = np.ones(n) if sent is None else sent
    tau = float(seconds.sum() / counts.sum())
    error = np.sqrt(((seconds - tau * counts) ** 2).sum() / max(n - 1, 1) / n) / counts.mean()
    reach = stats.t.ppf(TAILS, n - 1) * error if n > 1 else np.array([-tau, np.inf])
    lost = float(counts.sum()) - n
    # Of n + lost packets n came through; the last of them did (negative binomial).
    low = float(stats.beta.ppf(TAILS[0], n, lost + 1))
    high = float(stats.beta.ppf(TAILS[1], n, lost)) if lost else 1.0
    return LinkFit(
        tau,
        lost / (n + lost),
        np.maximum(tau + reach, 0.0),
        np.full(2, np.nan) if hidden else np.array([1 - high, 1 - low]),
        hidden,
    )


UNMEASURED_LINK = LinkFit(0.0, 0.0, np.full(2, np.nan), np.full(2, np.nan), hidden=True)
"""A link of which no seconds were measured."""


def measured_link(
    seconds: FloatArray | None, retries: FloatArray | None, name: str, notes: list[str]
) -> tuple[FloatArray | float, LinkFit]:
    """Return the seconds on a link, 0 if they were not measured, and the link fitted to them."""
    if seconds is not None:
        return seconds, fit_link(seconds, retries)
    if retries is not None:
        notes.append(f"retries_{name} are not usable without the seconds {name}: measure those too")
    return 0.0, UNMEASURED_LINK


def note_hidden(down: LinkFit, up: LinkFit, notes: list[str]) -> None:
    """Note which parts of the link cannot be identified."""
    if down is UNMEASURED_LINK and up is UNMEASURED_LINK:
        notes.append(
            "retransmissions are hidden in the times, as with TCP: the link counts as overhead, "
            "with erasure 0; measure the seconds down and up to separate them"
        )
        return
    for name, link in (("down", down), ("up", up)):
        if link is UNMEASURED_LINK:
            notes.append(f"the seconds {name} were not measured: they count as overhead")
        elif link.hidden:
            notes.append(
                f"the seconds {name} are not multiples of a packet time: retransmissions are "
                "hidden, as with TCP; packet_time is their mean, with erasure 0"
            )


def replied_interval(came: float, late: float, total: int) -> FloatArray:
    """Return an interval for the availability (Clopper–Pearson).

    Its lower end counts all missing replies as absent, its upper end those `late` as present.
    """
    there = came + late
    low = stats.beta.ppf(TAILS[0], came, total - came + 1) if came > 0 else 0.0
    high = stats.beta.ppf(TAILS[1], there + 1, total - there) if there < total else 1.0
    return np.array([low, high])


def ks_distance(
    fleet: DelayParameters, load: FloatArray, seconds: FloatArray, limit: FloatArray
) -> FloatArray:
    """Return the largest gap between the cdf of u = P(T ≤ t | it came) and the uniform one.

    Parameters
    ----------
    fleet
        A client for each sample, always available.
    load, limit : shape (n,)
        Points, and when the server stopped waiting.
    seconds : shape (samples, n)
    """
    n = len(load)
    by_t = fleet.cdf(load[:, None], seconds.T).T
    waits: npt.NDArray[np.bool_] = np.isfinite(limit)
    if waits.any():
        by_limit = fleet.cdf(load[waits, None], limit[waits, None]).T
        by_t[:, waits] = np.minimum(by_t[:, waits] / np.maximum(by_limit, 1e-300), 1.0)
    u = np.sort(by_t, axis=-1)
    rank = np.arange(1, n + 1) / n
    gaps = np.maximum(rank - u, u - rank + 1 / n)
    return np.asarray(gaps.max(-1))
