"""What a client's own parity, sent once in the set-up, says of its later gradients.

Parity X̆ = G·W·X of u rows says what a gradient should be, up to the error of the sketch: with
residuals r̆ = X̆β − Y̆ its gradient A = X̆ᵀr̆ estimates Σ w²g over the client's points. Points are in
random order, so a load stands for all of them up to a sampling error.

Distances are measured by their effect on the objective: ‖Δ‖² = tr ΔᵀM⁻¹Δ, with the curvature M
estimated from the parity of all clients. A false gradient moves the minimum, and the objective
rises in proportion to ‖Δ‖². In this norm the error of A has the variance (‖X̆w‖²‖r̆w‖² + ‖Aw‖²)/u
in every direction w of the labels, for any code here whose columns have length 1; the rows of X̆
are measured by M too. The worst direction counts: a lie about two classes cannot hide in the noise
of all others.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cholesky, solve_triangular

from codedfedl.arrays import FloatArray
from codedfedl.core.client import BlockParity, Embedded, Gradient, Parity
from codedfedl.core.protocol import Task
from codedfedl.core.work import Work
from codedfedl.federate.server.checks import RefusedError, norm
from codedfedl.learning.least_squares import ParityRows
from codedfedl.runs.exchange import StoredAnswers

_ROUNDING = 1e-4  # of float32 sums, relative
_NARROWEST = 0.05  # of the mean spread: no direction of the labels is taken to be surer
_FLATTEST = 1e-3  # of the mean curvature: no direction is taken to be flatter
MAX_FEATURES_TOGETHER = 4096  # features beyond which curvature is measured feature by feature


@dataclass(frozen=True, eq=False)
class Metric:
    """The norm for gradients: the curvature estimated from the parity of all clients.

    Attributes
    ----------
    root
        L of M = LLᵀ, lower triangular; where there are many features its diagonal alone.
    """

    root: FloatArray

    @classmethod
    def of(cls, features: Iterable[npt.NDArray[Any]], size: int, ridge: float) -> "Metric":
        """Return the metric of some parity, with the ridge of the objective."""
        whole = size <= MAX_FEATURES_TOGETHER
        total = np.zeros((size, size) if whole else size)
        for rows in features:
            each = np.asarray(rows, dtype=np.float64)
            total += each.T @ each if whole else (each**2).sum(0)
        mean = float((np.trace(total) if whole else total.sum()) / size)
        least = ridge + _FLATTEST * mean + np.finfo(float).tiny
        if not whole:
            return cls(np.sqrt(total + least))
        return cls(cholesky(total + least * np.eye(size), lower=True, check_finite=False))

    def whitened(self, array: npt.NDArray[Any]) -> FloatArray:
        """Return L⁻¹ times an array of shape (q, k)."""
        if self.root.ndim == 1:
            return np.asarray(array / self.root[:, None])
        return np.asarray(solve_triangular(self.root, array, lower=True, check_finite=False))


@dataclass(frozen=True, eq=False)
class Measured:
    """How far a gradient is off, its expected error, and the direction.

    Attributes
    ----------
    direction : array of shape (q, c)
        Of length 1, measured by M.
    spread : array of shape (c, c)
        How the expected error is spread over the labels.
    rows
        Parity rows that the expected error was estimated from.
    """

    off: float
    error: float
    direction: npt.NDArray[np.float32]
    spread: FloatArray
    rows: float = np.inf

    @property
    def distance(self) -> float:
        """Distance in expected errors."""
        return self.off / self.error


@dataclass(frozen=True, eq=False)
class Expected:
    """The expected gradient, and its expected error.

    Attributes
    ----------
    gradient : array of shape (q, c)
    spread : array of shape (c, c)
        The expectation of ΔᵀM⁻¹Δ.
    rows
        Parity rows that it was estimated from.
    """

    gradient: FloatArray
    spread: FloatArray
    metric: Metric
    rows: float

    def times(self, weight: float) -> "Expected":
        """Return what the gradient should be times a weight."""
        return replace(self, gradient=weight * self.gradient, spread=weight**2 * self.spread)

    def measure(self, gradient: npt.NDArray[Any]) -> Measured:
        """Return how far a gradient lies off, in the worst direction of the labels."""
        columns = len(self.spread)
        rounding = _ROUNDING * norm(self.metric.whitened(self.gradient)) + 1e-12
        total = float(np.trace(self.spread))
        if not np.isfinite(total):
            nowhere = np.zeros(self.gradient.shape, np.float32)
            return Measured(np.inf, 1.0, nowhere, self.spread)
        # Few rows do not show all directions of the labels: then none is assumed to be more
        # certain.
        even = min(1.0, _NARROWEST + columns / self.rows)
        least = (even * total + rounding**2) / columns
        root = cholesky((1 - even) * self.spread + least * np.eye(columns), lower=True)
        off = self.metric.whitened(np.asarray(gradient, dtype=np.float64) - self.gradient)
        each = solve_triangular(root, off.T, lower=True)
        distance = float(np.sqrt(np.linalg.eigvalsh(each @ each.T)[-1]))
        error = float(np.sqrt(total)) + rounding
        direction = off / max(norm(off), np.finfo(float).tiny)
        return Measured(
            distance * error, error, direction.astype(np.float32), self.spread, self.rows
        )


class Evidence:
    """What the clients' own parity, sent in the set-up, says of their later answers.

    Parameters
    ----------
    stored
        The parity of the clients, and the points behind it.

    Attributes
    ----------
    setup
        The work of the set-up: what was asked for once.
    """

    def __init__(self, task: Task, stored: StoredAnswers) -> None:
        self.task, self._stored = task, stored
        self.setup: Work | None = None
        self._metric: Metric | None = None
        self._shares: tuple[float, float] | None = None
        self._lengths: dict[tuple[int, int], float] = {}

    def expects(
        self, work: Work, client: int, load: int, model: npt.NDArray[Any]
    ) -> Expected | None:
        """Say what an answer should be; None where parity says nothing about such work.

        Raises
        ------
        RefusedError
            If the client has sent no parity: then anything could be its gradient.
        """
        made, batch = self.setup, getattr(work, "batch", 0)
        coded = isinstance(work, Gradient) and isinstance(made, Parity)
        if not coded and not (type(work) is Embedded and isinstance(made, BlockParity)):
            return None
        parity = self._stored.parity(client, batch)
        if parity is None:
            raise RefusedError("has sent no parity to judge its answers by")
        if isinstance(work, Gradient):
            expected = self._of_load(parity, client, batch, load, model)
            return None if expected is None else expected.times(work.weight_of(client))
        points = int(self.task.held[client])
        usual = self._usual(client, parity)
        rows, embedded = (max(count, share * points) for count, share in usual)
        # At most, over all points: embedding fewer points than others must not widen the limit.
        sampling = points**2 * max(1 / embedded - 1 / points, 0.0)
        return self._expected(parity, (client, batch), model, points, 1.0, sampling, rows)

    def _usual(self, client: int, parity: ParityRows) -> Iterator[tuple[float, float]]:
        """Yield a client's parity rows and the points behind them, each with the usual share."""
        shares = self._shares
        if shares is None:
            all_parity = {j: self._stored.parity(j) for j in range(self.task.clients)}
            known = {j: other for j, other in all_parity.items() if other}
            held = {j: float(self.task.held[j]) for j in known}
            rows = [len(other.targets) / held[j] for j, other in known.items()]
            shares = self._shares = (
                float(np.median(rows)),
                float(np.median([self._stored.points[j] / held[j] for j in known])),
            )
        yield len(parity.targets), shares[0]
        yield self._stored.points[client], shares[1]

    def _of_load(
        self, parity: ParityRows, client: int, batch: int, load: int, model: npt.NDArray[Any]
    ) -> Expected | None:
        """Return what the paper's parity implies for the gradient over the first `load` points.

        None if it implies nothing: all points are processed and certain to return, so all weigh 0.
        """
        assert isinstance(self.setup, Parity)
        part, held = self.setup.for_client(client), self.task.points[:, client]
        points, squares = int(held[batch]), part.squared_weights(held)[batch]
        if squares <= 0 or np.asarray(part.loads)[batch] != load:
            return None
        sampling = load * (1 - load / points) * (points / squares) ** 2
        return self._expected(parity, (client, batch), model, squares, load / squares, sampling)

    def _expected(
        self,
        parity: ParityRows,
        which: tuple[int, int],
        model: npt.NDArray[Any],
        squares: float,
        share: float,
        sampling: float,
        rows: float | None = None,
    ) -> Expected:
        metric = self.metric
        features, targets = parity.features, parity.targets
        if which not in self._lengths:
            whitened = metric.whitened(np.asarray(features, dtype=np.float64).T)
            self._lengths[which] = norm(whitened) ** 2
        residuals = np.asarray(features @ model - targets, dtype=np.float64)
        mean = np.asarray(features.T @ residuals, dtype=np.float64)
        lengths = self._lengths[which] * (residuals.T @ residuals)
        count = len(targets) if rows is None else rows
        whitened_mean = metric.whitened(mean)
        sketch = (lengths + whitened_mean.T @ whitened_mean) / count
        # A point's own gradient has the mean square ‖x‖²‖r‖²; both means come from the parity.
        spread = share**2 * sketch + sampling * lengths / squares**2
        unsure = 1 + np.sqrt(2 / count)  # the lengths themselves are estimates from u rows
        return Expected(share * mean, unsure**2 * spread, metric, count)

    def overlap(self, left: int, right: int) -> float:
        """Return the mean square of the cosine of two clients' errors, as far as points decide it.

        It is 1/k where both errors are spread over the same k directions of the features.
        """
        rows = [
            [
                self.metric.whitened(np.asarray(parity.features, dtype=np.float64).T)
                for batch in range(self.task.batches)
                if (parity := self._stored.parity(client, batch)) is not None
            ]
            for client in (left, right)
        ]
        first, second = (np.concatenate(parts, axis=1) for parts in rows)
        lengths = norm(first) ** 2 * norm(second) ** 2
        return float(norm(first.T @ second) ** 2 / max(lengths, np.finfo(float).tiny))

    @property
    def metric(self) -> Metric:
        """The curvature of all parity that is available at the first call."""
        if self._metric is None:
            ridge = self.task.ridge * float(self.task.held.sum())
            self._metric = Metric.of(self._features(), self.task.model_shape[0], ridge)
        return self._metric

    def _features(self) -> Iterator[npt.NDArray[Any]]:
        for client in range(self.task.clients):
            for batch in range(self.task.batches):
                if (parity := self._stored.parity(client, batch)) is not None:
                    yield parity.features


class Expecting:
    """What clients should answer, computed while they are waited for.

    Judging an answer reads the client's parity, which may be large: too slow just before a
    deadline.

    Parameters
    ----------
    left
        Returns how many seconds are left.
    """

    def __init__(
        self,
        expect: Callable[[int], Expected | None],
        clients: Iterable[int],
        left: Callable[[], float],
    ) -> None:
        self._pool, self._left = ThreadPoolExecutor(1), left
        self._found = {client: self._pool.submit(expect, client) for client in clients}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __getitem__(self, client: int) -> Expected | None:
        """Return what a client should answer; `TimeoutError` where that is not known in time."""
        left = self._left()
        return self._found[client].result(left if np.isfinite(left) else None)
