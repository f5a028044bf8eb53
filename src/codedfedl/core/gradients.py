"""Gradients over a client's points: of a mini-batch, of what it has embedded, of points drawn anew.

Each kind says over which points, and with which weights; the sum Σ w_i·∇ℓ_i is the learner's.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from codedfedl.arrays import Array, IntArray, asarray_like
from codedfedl.core.task import Task
from codedfedl.core.work import Answer, Client, Window, Work
from codedfedl.errors import InputError
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.learning.learner import Learner

GROWTH_OF_EMBEDDED = 1.5
"""Later answers cover this many times the points of the last one, or all."""

LEAST_IN_BLOCK, MOST_BLOCKS = 50, 10
"""A real client's windows are sums of blocks: of so many points at least, and so many at most."""

_DRAWS = 1 << 22  # Names the streams of drawn points, beside those of codes and private sums.


def block_ends(points: int) -> IntArray:
    """Return where the blocks of a mini-batch end: all about equal, and one of few points.

    Examples
    --------
    >>> block_ends(170).tolist(), block_ends(40).tolist()
    ([56, 113, 170], [40])
    """
    size = max(LEAST_IN_BLOCK, -(-points // MOST_BLOCKS))
    count = max(1, points // size)
    return np.arange(1, count + 1) * points // count


class Terms(NamedTuple):
    """Some points of a sum of gradients.

    Attributes
    ----------
    features, targets : arrays of shape (k, d) and (k, c)
    factor
        Of all of them.
    weights : array of shape (k,), optional
        Of each of them, beside the factor.
    """

    features: Array
    targets: Array
    factor: float = 1.0
    weights: Array | None = None

    def gradient(self, learner: Learner, model: Array) -> Array:
        """Return the sum of the gradients."""
        total = learner.gradient(model, self.features, self.targets, self.weights)
        return total if self.factor == 1 else self.factor * total


class PointGradient(Work):
    """Σ w_i·∇ℓ_i over some of a client's points: of many clients, it is one sum over all points."""

    @abstractmethod
    def terms(self, client: Client, load: int) -> Iterator[Terms]:
        """Yield the points of one client, in one part or several."""

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the weighted sum of the gradients."""
        parts = (part.gradient(client.learner, model) for part in self.terms(client, load))
        first = next(parts)
        return Answer(load, {"gradient": sum(parts, start=first)})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return what the learner's gradient takes a point, and a packet."""
        return costs.packet(task.workload, loads)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's shape."""
        return {"gradient": task.model_shape}


@dataclass(frozen=True)
class Gradient(PointGradient):
    """The gradient over the first `load` points of a mini-batch, as a sum (section 3.5)."""

    batch: int

    kind: ClassVar[str] = "gradient"

    def weight_of(self, client: int) -> float:
        """Return what a client multiplies its gradient by."""
        return 1.0

    def most_weight(self, client: int, points: int, held: float) -> float:
        """Return the weight of all points together."""
        return points * self.weight_of(client)

    def terms(self, client: Client, load: int) -> Iterator[Terms]:
        """Yield the points: for least squares, their gradient is X̂ᵀ(X̂β − Y)."""
        features, targets = client.batch(self.batch)
        yield Terms(features[:load], targets[:load])


@dataclass(frozen=True, eq=False)
class WeightedGradient(Gradient):
    """The gradient times the client's weight, so that the sum over arrivals is unbiased."""

    weights: npt.ArrayLike

    kind: ClassVar[str] = "weighted_gradient"
    per_client: ClassVar[Mapping[str, Any]] = {"weights": 0.0}

    def weight_of(self, client: int) -> float:
        """Return the weight of a client."""
        return float(np.asarray(self.weights)[client])

    def terms(self, client: Client, load: int) -> Iterator[Terms]:
        """Yield the points, each with the client's weight."""
        weight = float(self.weights)  # type: ignore[arg-type]
        yield from (part._replace(factor=weight) for part in super().terms(client, load))


@dataclass(frozen=True, eq=False)
class DrawnGradient(PointGradient):
    """A weighted gradient over points of a mini-batch that are drawn anew for every answer.

    With the points in their fixed random order, as on a circle, it is over the next `load` of them
    after a random start. Point i of class c counts a_j/load + v_c: with a_j alone, a client's mean
    counts whatever its load is.

    Parameters
    ----------
    draw
        Which draw it is, where draws can be repeated.
    client_weights : array of shape (n,), or one client's
        a_j.
    class_weights : array of shape (c,), optional
        v_c; targets are then one-hot.
    """

    batch: int
    draw: int
    client_weights: npt.ArrayLike
    class_weights: npt.ArrayLike | None = None

    kind: ClassVar[str] = "drawn_gradient"
    per_client: ClassVar[Mapping[str, Any]] = {"client_weights": 0.0}

    def most_weight(self, client: int, points: int, held: float) -> float:
        """Return the most that the weights of a client's points add up to."""
        largest = 0.0 if self.class_weights is None else float(np.max(self.class_weights))
        return float(np.asarray(self.client_weights)[client]) + largest * points

    def terms(self, client: Client, load: int) -> Iterator[Terms]:
        """Yield the points after the start, and those at the beginning of the circle."""
        features, targets = client.batch(self.batch)
        held = int(targets.shape[0])
        start = int(client.code_stream(_DRAWS, self.draw).integers(held))
        mean = float(self.client_weights) / load  # type: ignore[arg-type]
        for rows in (slice(start, start + load), slice(0, max(0, start + load - held))):
            part = targets[rows]
            if not part.shape[0]:
                continue
            if self.class_weights is None:
                yield Terms(features[rows], part, mean)
            else:
                by_class = np.asarray(self.class_weights, dtype=np.float32)
                weights = part @ asarray_like(by_class, part) + mean
                yield Terms(features[rows], part, weights=weights)


@dataclass(frozen=True, eq=False)
class WindowGradient(DrawnGradient):
    """As many points as a client finishes in some seconds; with fewer than `least` it computes on.

    Anytime Minibatch (Ferdinand et al., 2019) has such windows. A client that computes on answers
    late, and for the model that it began with.

    Parameters
    ----------
    seconds
        From the moment on at which the client has the model.
    """

    seconds: float = 0.0
    least: int = 1

    kind: ClassVar[str] = "window_gradient"

    def __post_init__(self) -> None:
        if not self.seconds > 0 or self.least < 1:
            raise InputError(
                f"a window of {self.seconds:g} seconds for at least {self.least} points: both must "
                "be above 0"
            )

    @property
    def window(self) -> Window:
        """For how long a client computes."""
        return Window(self.seconds, self.least)

    def timed(self, client: Client, load: int, model: Array, clock: Callable[[], float]) -> Answer:
        """Return the gradient over whole blocks: the next ones after a random one.

        The last is one after which another is not expected to be done when the window ends.
        """
        until, points = clock() + self.seconds, 0
        features, targets = client.batch(self.batch)
        ends = block_ends(int(targets.shape[0]))
        first = int(np.random.default_rng(self.draw).integers(len(ends)))  # the same in a replay
        weight, total = float(self.client_weights), {"by client": 0.0, "by class": 0.0}  # type: ignore[arg-type]
        for k in (first + np.arange(len(ends))) % len(ends):
            began, rows = clock(), slice(int(ends[k - 1]) if k else 0, int(ends[k]))
            block = Terms(features[rows], targets[rows])
            if self.class_weights is not None:
                by_class = np.asarray(self.class_weights, dtype=np.float32)
                weighted = block._replace(weights=block.targets @ by_class)
                total["by class"] += weighted.gradient(client.learner, model)
            if weight or self.class_weights is None:
                total["by client"] += block.gradient(client.learner, model)
            points += rows.stop - rows.start
            now = clock()
            if points >= load or (points >= self.least and now + (now - began) > until):
                break
        gradient = weight / points * total["by client"] + total["by class"]
        return Answer(points, {"gradient": gradient})


@dataclass(frozen=True, eq=False)
class Embedded(PointGradient):
    """The gradient over all points embedded so far, scaled up to more points than these.

    Parameters
    ----------
    least : int, or array of shape (n,)
        A client with fewer points embedded says nothing yet, and embeds on.
    grows
        Whether later answers cover more points, as more are embedded; otherwise every answer covers
        the points of the first.
    represents : array of shape (n,), or one client's, optional
        For how many points each answer counts (`planning.strata`); by default all that it holds.
    """

    least: npt.ArrayLike = 1
    grows: bool = True
    represents: npt.ArrayLike | None = None

    kind: ClassVar[str] = "embedded"
    per_client: ClassVar[Mapping[str, Any]] = {"least": 1, "represents": None}

    def terms(self, client: Client, load: int) -> Iterator[Terms]:
        """Yield k points, each with the same weight, which is ℓ/k by default."""
        represents = client.points if self.represents is None else self.represents
        weight = float(represents) / load  # type: ignore[arg-type]
        yield from (Terms(*part, weight) for part in client.first(load))

    def most_weight(self, client: int, points: int, held: float) -> float:
        """Return for how many points each answer counts."""
        return held if self.represents is None else float(np.asarray(self.represents)[client])

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Cover new points only once they add half to the last count, or complete it.

        No client answers for more points than it is asked for. One that lost some of what it had
        embedded answers for what is left.
        """
        embedded = np.minimum(embedded, asked)
        grown = (embedded >= GROWTH_OF_EMBEDDED * answered) | (embedded == asked)
        if not self.grows:
            grown = np.asarray(answered == 0)
        loads = np.where(grown, embedded, np.minimum(answered, embedded))
        return np.where(loads >= np.minimum(self.least, held), loads, 0)


@dataclass(frozen=True, eq=False)
class FirstGradient(Embedded):
    """The gradient at a model of zeros, -XᵀY: of classes, a sum of features for each.

    It takes q multiply-accumulates a point instead of 2·q·c. With it comes Σ‖x‖²‖y‖², which says
    how much of the sums is chance.
    """

    kind: ClassVar[str] = "first_gradient"

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the weight times the gradient, and the sum of the squared lengths of its terms."""
        total, squares = 0.0, 0.0
        for features, targets, weight, _ in self.terms(client, load):
            xp = array_namespace(features)
            total = total - weight * (features.T @ targets)
            lengths = xp.sum(features * features, axis=1) * xp.sum(targets * targets, axis=1)
            squares += float(xp.sum(lengths))
        sent = asarray_like(np.array([squares], dtype=np.float32), model)
        return Answer(load, {"gradient": total, "squares": sent})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return q multiply-accumulates a point, or q·c for the targets of a regression."""
        whole = super().cost(task, loads)
        return replace(whole, macs=whole.macs / (2 * task.workload.labels))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's shape, and that of one number."""
        return {"gradient": task.model_shape, "squares": (1,)}
