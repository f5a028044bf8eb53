"""What one client's measurements say: its part of a fleet, and whether the model fits."""

from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.fitting.estimates import (
    TAILS,
    LinkFit,
    MissingReplies,
    Shape,
    WorkFit,
    fit_work,
    ks_distance,
    measured_link,
    note_hidden,
    replied_interval,
)
from codedfedl.fitting.traces import Traces
from codedfedl.fleet.delays import DelayParameters

FEWEST_TO_JUDGE = 8
"""Minimum number of replies for judging how well the model fits a client."""

QUANTITIES = tuple(DelayParameters.names()[1:])  # without the client's name
_BOOTSTRAP_SAMPLES = 999
_LEAST_COMPUTE_SHARE = 1e-3  # of a time: a fleet has a finite rate, whatever was measured
_MAX_ALPHA = 1e4  # likewise
_ROUNDING_SHARE = 1e-9  # of a time: what a difference of times may be off by
_WAYS = ("down", "up")


@dataclass(frozen=True, eq=False)
class Fitted:
    """The estimates for one client."""

    estimate: dict[str, float]
    interval: dict[str, FloatArray]
    p_value: float
    replies: int
    as_measured: tuple[FloatArray, FloatArray]  # per point, fixed
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ClientTimes:
    """One client's measurements, decomposed: T = work + down + up + rest.

    Arrays have an entry for each reply, but for `missing`.
    """

    load: FloatArray
    seconds: FloatArray  # T
    work: FloatArray  # compute; without it, T less what is known of the link
    rest: FloatArray
    limit: FloatArray  # when the server stopped waiting
    down: LinkFit
    up: LinkFit
    missing: MissingReplies  # limits are those of T
    shape: Shape
    separable: bool  # a fixed time from one that grows with the load
    notes: list[str]

    @staticmethod
    def of(traces: Traces, rows: IntArray, points: float) -> "ClientTimes":
        """Decompose the measurements of a client."""
        came, never = rows[traces.came[rows]], rows[~traces.came[rows]]
        seconds, notes = traces.seconds[came], list[str]()

        def known(name: str) -> FloatArray | None:
            values: FloatArray = getattr(traces, name)[came]
            if len(came) and np.isnan(values).any() and not np.isnan(values).all():
                notes.append(f"{name} is not used: it was not measured for every reply")
            return None if np.isnan(values).any() or not len(came) else values

        compute = known("compute")
        links = [
            measured_link(known(name), known(f"retries_{name}"), name, notes) for name in _WAYS
        ]
        on_link = sum((values for values, _ in links), np.zeros(len(came)))
        work = (
            np.maximum(seconds - on_link, _ROUNDING_SHARE * seconds) if compute is None else compute
        )
        rest = seconds - on_link - work
        load = traces.load[came]
        shape, separable = _shape_of(load, compute is not None, points, notes)
        note_hidden(links[0][1], links[1][1], notes)
        waited = traces.waited[never]
        if len(never) and np.isnan(waited).any() and len(came):
            notes.append(
                "missing replies count as absence: add 'waited', the seconds after which the "
                "server gave up, to separate late from absent"
            )
        last_look = np.where(np.isnan(waited), np.inf, waited)
        return ClientTimes(
            load=load,
            seconds=seconds,
            work=work,
            rest=np.where(rest > _ROUNDING_SHARE * seconds, rest, 0.0),
            limit=_reply_limits(seconds, traces.waited[came], waited),
            down=links[0][1],
            up=links[1][1],
            missing=MissingReplies(traces.load[never], last_look, np.ones(len(never))),
            shape=shape,
            separable=separable,
            notes=notes,
        )

    def fitted(self, rng: np.random.Generator) -> Fitted:
        """Estimate everything, and judge it."""
        n = len(self.load)
        if not n:
            return self._never_there()
        work = self._fit_work(self.work)
        estimate = self._estimate(work, np.array([[self.down.erasure, self.up.erasure]]))
        late = float(work.availability[0]) * (n + len(self.missing.load)) - n
        if late > 0.5:
            share = f"about {late:.0f} of {len(self.missing.load)}"
            self.notes.append(
                f"{share} missing replies were late, not absent, according to the fit"
            )
        if work.freedom[0] <= 0:
            self.notes.append(
                "too few measurements to estimate how much times vary: alpha is assumed to be 2, "
                "as in the paper; measure more often"
            )
        if n < FEWEST_TO_JUDGE:
            self.notes.append(
                f"fewer than {FEWEST_TO_JUDGE} replies: whether the model fits cannot be judged"
            )
        interval = self._intervals(estimate, late, rng)
        fixed = np.minimum(work.fixed[0], self.work)
        gone = np.full(len(self.missing.load), np.inf)
        return Fitted(
            estimate={name: float(column[0]) for name, column in estimate.items()}
            | {"availability": float(work.availability[0])},
            interval=interval,
            p_value=self._p_value(work, estimate, rng) if n >= FEWEST_TO_JUDGE else np.nan,
            replies=n,
            as_measured=(
                np.append((self.work - fixed) / self.load, gone),
                np.append(self.seconds - self.work + fixed, gone),
            ),
            notes=self.notes,
        )

    def _never_there(self) -> Fitted:
        unknown = dict.fromkeys(QUANTITIES, np.full(2, np.nan))
        interval = replied_interval(0, 0, len(self.missing.load))
        estimate = dict.fromkeys(QUANTITIES, 0.0) | {"rate": 1.0, "alpha": 1.0}
        gone = np.full(len(self.missing.load), np.inf)
        return Fitted(estimate, unknown | {"availability": interval}, np.nan, 0, (gone, gone))

    def _fit_work(
        self, work: FloatArray, times: FloatArray | None = None, *, bounded: bool = True
    ) -> WorkFit:
        """Fit samples of the work; `times` says how often each missing measurement counts."""
        counted = self.missing.times if times is None else times
        limit = self.missing.limit - (self.seconds - self.work).mean()
        missing = MissingReplies(self.missing.load, limit, counted)
        return fit_work(self.load, np.atleast_2d(work), missing, self.shape, bounded=bounded)

    def _estimate(self, work: WorkFit, erasure: FloatArray) -> dict[str, FloatArray]:
        """Return a fleet's columns, an entry for each sample; `erasure` has shape (…, 2)."""
        middle = 1 / np.mean(1 / self.load)
        least = _LEAST_COMPUTE_SHARE * (work.fixed / middle + work.per_point + work.spread)
        per_point = np.maximum(work.per_point, least)
        fixed = np.maximum(work.fixed - (per_point - work.per_point) * middle, 0.0)
        samples = np.ones(len(per_point))
        return {
            "rate": 1 / per_point,
            "alpha": np.minimum(per_point / work.spread, _MAX_ALPHA),
            "packet_time": self.down.packet_time * samples,
            "erasure": erasure[:, 0] * samples,
            "packet_time_up": self.up.packet_time * samples,
            "erasure_up": erasure[:, 1] * samples,
            "overhead": fixed + self.rest.mean(),
        }

    def _intervals(
        self, estimate: dict[str, FloatArray], late: float, rng: np.random.Generator
    ) -> dict[str, FloatArray]:
        """Return the intervals, each with the estimate inside."""
        fixed, per_point, alpha, may_be_late = self._work_intervals(rng)
        n, gone = len(self.load), len(self.missing.load)
        most_late = min(max(late, may_be_late[1]), gone)
        error = self.rest.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
        reach = error * stats.t.ppf(TAILS, max(n - 1, 1)) + self.rest.mean()
        with np.errstate(divide="ignore"):
            intervals = {
                "rate": 1 / per_point[::-1],
                "alpha": alpha,
                "overhead": np.maximum(fixed + reach, 0.0),
            }
        for name, values in intervals.items():
            at = estimate[name][0]
            intervals[name] = np.array([min(values[0], at), max(values[1], at)])
        for suffix, link in (("", self.down), ("_up", self.up)):
            intervals[f"packet_time{suffix}"] = link.packet_time_interval
            intervals[f"erasure{suffix}"] = link.erasure_interval
        return intervals | {"availability": replied_interval(n, most_late, n + gone)}

    def _work_intervals(self, rng: np.random.Generator) -> tuple[FloatArray, ...]:
        """Return intervals for c, a, α and how many were late, from estimates of simulated times.

        The distance of estimates from the simulated values, in units of θ̂, does not depend on the
        true values: each simulated distance gives true values that may have led to the measurements
        (a generalised pivot). With late replies this holds only approximately; then the spread of
        the estimates counts too.
        """
        base = self._fit_work(self.work, bounded=False)
        if base.freedom[0] <= 0:
            proportional = self.shape == "per point" and self.separable
            fixed = np.array([0.0, 0.0 if proportional else self.work.min()])
            per_point = np.array([0.0, (self.work / self.load).min()])
            return fixed, per_point, np.array([0.0, np.inf]), np.zeros(2)
        n = len(self.load)
        drawn = base.draw(self.load, self._work_limit, rng.random((_BOOTSTRAP_SAMPLES, n)))
        # As many replies are missing as would be between n replies (negative binomial).
        shape = (_BOOTSTRAP_SAMPLES, len(self.missing.load))
        times = rng.poisson(rng.gamma(n, 1 / n, (_BOOTSTRAP_SAMPLES, 1)), shape).astype(np.float64)
        again = self._fit_work(drawn, times, bounded=False)
        spread = base.spread**2 / again.spread
        unit = spread / base.spread
        draws = [
            self._possible(
                base.fixed - (again.fixed - base.fixed) * unit,
                base.per_point - (again.per_point - base.per_point) * unit,
                spread,
            )
        ]
        if np.isfinite(self.missing.limit).any():
            draws.append(self._possible(again.fixed, again.per_point, again.spread))
        ends = np.quantile(draws, TAILS, axis=-1)  # (2, ways, 3)
        intervals = np.stack([ends[0].min(0), ends[1].max(0)], axis=-1)
        if not self.separable:
            intervals[:, 0] = 0.0
        late = again.availability * (n + times.sum(-1)) - n
        return (*intervals, np.quantile(late, TAILS))

    def _possible(
        self, fixed: FloatArray, per_point: FloatArray, spread: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return c, a and α; if they cannot be separated, each with all of the time."""
        fixed, per_point = np.maximum(fixed, 0.0), np.maximum(per_point, 0.0)
        if not self.separable:
            fixed = fixed + per_point * self.load[0]
            per_point = fixed / self.load[0]
        return fixed, per_point, per_point / spread

    @property
    def _work_limit(self) -> FloatArray:
        """What the work could have taken at most, for a reply in time."""
        return self.limit - (self.seconds - self.work)

    def _p_value(
        self, work: WorkFit, estimate: dict[str, FloatArray], rng: np.random.Generator
    ) -> float:
        """Return how often times drawn from the fit lie further from their own fit."""
        n = len(self.load)
        distance = self._distance(estimate, self.seconds[None])
        luck = rng.random((_BOOTSTRAP_SAMPLES, n))
        drawn = work.draw(self.load, self._work_limit, luck)
        sent = [
            rng.geometric(1 - link.erasure, (_BOOTSTRAP_SAMPLES, n))
            for link in (self.down, self.up)
        ]
        erasure = np.stack([1 - n / count.sum(-1) for count in sent], axis=-1)
        seconds = drawn + self.rest.mean()
        seconds = seconds + self.down.packet_time * sent[0] + self.up.packet_time * sent[1]
        again = self._distance(self._estimate(self._fit_work(drawn), erasure), seconds)
        return float((1 + (again >= distance[0]).sum()) / (1 + _BOOTSTRAP_SAMPLES))

    def _distance(self, estimate: dict[str, FloatArray], seconds: FloatArray) -> FloatArray:
        parameters = DelayParameters(**estimate)
        return ks_distance(parameters, self.load, seconds, self.limit)


def _shape_of(
    load: FloatArray, computed: bool, points: float, notes: list[str]
) -> tuple[Shape, bool]:
    """Choose the form of the deterministic part, and note what cannot be identified."""
    if len(np.unique(load)) != 1:
        return "line", True
    if computed:
        notes.append(
            "compute was measured at a single load: a fixed part cannot be identified; measure at "
            "two or more loads"
        )
        return "per point", True
    why = "totals at a single load do not separate compute from link and overhead: "
    if points > load[0]:
        notes.append(
            f"{why}all of it is assumed to grow with the load, since more points are planned than "
            "were measured; measure at two or more loads"
        )
        return "per point", False
    notes.append(
        f"{why}the deterministic part is assumed to be overhead, so that no smaller load is "
        "promised to be faster than measured; measure at two or more loads"
    )
    return "fixed", False


def _reply_limits(seconds: FloatArray, waited: FloatArray, never_waited: FloatArray) -> FloatArray:
    """Return when the server stopped waiting for each reply; ∞ where it waited forever.

    Where a reply has no such time, it is taken to be the longest of those that never came.
    """
    longest = np.nanmax(np.append(never_waited, 0.0))
    limit = np.where(np.isnan(waited), longest, waited)
    return np.where(seconds <= limit, limit, np.inf)
