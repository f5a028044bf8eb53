"""What a client does for the server: every kind of work, with its answer and its cost.

This is the only place where a client's mathematics is written. A real node calls `answer` on its
own data; the simulator calls it too, or does the same for many clients and models at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.core.clipped import ClippedGradient, ClippedMoments
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.encoding import BlockParity, Gram, Parity
from codedfedl.core.gradients import (
    DrawnGradient,
    Embedded,
    FirstGradient,
    Gradient,
    WeightedGradient,
    WindowGradient,
)
from codedfedl.core.masked import GradientDelta, Masked
from codedfedl.core.rounded import Rounded
from codedfedl.core.task import Task
from codedfedl.core.work import Answer, Client, OnEmbedded, Points, Work
from codedfedl.errors import InputError
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.devices import Fleet
from codedfedl.io.names import nearest
from codedfedl.planning.strata import count_strata, strata

# Kinds of work that are imported from here.
__all__ = [
    "BlockParity",
    "DrawnGradient",
    "Embedded",
    "FirstGradient",
    "Gradient",
    "Gram",
    "Parity",
    "WeightedGradient",
    "WindowGradient",
]

_ORDERS = 5 << 20  # Names the streams of the orders of local steps, beside those of codes.


@dataclass(frozen=True)
class Prepare(Work):
    """Embed all points, and send nothing."""

    kind: ClassVar[str] = "prepare"
    discloses: ClassVar[Disclosure | None] = None
    needs_model: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return nothing: what counts is how many points are done."""
        return Answer(load, {})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return no cost beyond embedding."""
        return Cost(np.zeros(task.clients), np.zeros(task.clients))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return nothing."""
        return {}


@dataclass(frozen=True)
class Embed(OnEmbedded, Prepare):
    """Embed as many points as there is time for, and send nothing."""

    kind: ClassVar[str] = "embed"

    def points_by(
        self, deadline: float, task: Task, fleet: Fleet, slowness: FloatArray, done: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Return the points that the deadline leaves time for."""
        seconds = costs.seconds_to_embed(task.feature_macs, task.workload, fleet, slowness)
        points = costs.embedded_by(deadline + done * seconds, seconds, task.held)
        return points, np.maximum(points - done, 0.0) * seconds


@dataclass(frozen=True)
class Counts(Work):
    """How many points of each class a client holds: of all its points, whoever asks."""

    kind: ClassVar[str] = "counts"
    discloses: ClassVar[Disclosure | None] = Disclosure.COUNTS
    needs_model: ClassVar[bool] = False
    embeds: ClassVar[bool] = False

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the number of points in every stratum, shape (s,)."""
        counts: FloatArray = np.asarray(
            sum(count_strata(y) for _, y in client.first(client.points))
        )
        return Answer(client.points, {"counts": counts.astype(np.float32)})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return a few numbers to send, which take a packet."""
        bits = 32.0 * strata(task.workload.labels)
        return Cost(np.zeros(task.clients), np.full(task.clients, bits))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return (s,)."""
        return {"counts": (strata(task.workload.labels),)}


@dataclass(frozen=True)
class LocalModel(Work):
    """Local gradient steps on a mini-batch; returns the new model times the points behind it.

    Parameters
    ----------
    points
        Of a step, in an order drawn anew for every answer; by default all.
    proximal
        FedProx's μ (`learning.learner`).
    draw
        Which order it is, where it can be repeated.
    """

    batch: int
    steps: int
    step_size: float
    ridge: float
    points: int | None = None
    proximal: float = 0.0
    draw: int = 0

    kind: ClassVar[str] = "local_model"
    discloses: ClassVar[Disclosure | None] = Disclosure.MODELS
    moves: ClassVar[bool] = True

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return what the client says of its model after the steps."""
        points, count, rng = self.stepped_on(client, load)
        after = client.learner.steps(model, *points, count=count, rng=rng, **self.how)
        return self.of_trained(after, model, load)

    def of_trained(self, after: Array, model: Array, load: int) -> Answer:
        """Return ℓ·β."""
        return Answer(load, {"model": after * load})

    @property
    def how(self) -> dict[str, Any]:
        """What the steps of all clients have in common."""
        step = {"step_size": self.step_size, "ridge": self.ridge}
        return step | {"batch": self.points, "proximal": self.proximal}

    def stepped_on(
        self, client: Client, load: int
    ) -> tuple[Points, int, np.random.Generator | None]:
        """Return a client's points, the number of its steps, and the order of its points."""
        features, targets = client.batch(self.batch)
        rng = None if self.points is None else client.code_stream(_ORDERS, self.draw)
        return (features[:load], targets[:load]), int(self.steps), rng

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return a gradient's for every step, and a packet."""
        each = loads if self.points is None else np.minimum(loads, self.points)
        return costs.packet(task.workload, each * np.asarray(self.steps))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's shape."""
        return {"model": task.model_shape}


@dataclass(frozen=True, eq=False)
class LocalDirection(LocalModel):
    """As many steps as each client has; where a step of it led on average, times the points."""

    steps: Any  # of every client, or of one

    kind: ClassVar[str] = "local_direction"
    moves: ClassVar[bool] = False
    per_client: ClassVar[Mapping[str, Any]] = {"steps": 0}

    def of_trained(self, after: Array, model: Array, load: int) -> Answer:
        """Return ℓ·(β − β after the steps)/steps."""
        return Answer(load, {"direction": (model - after) * (load / self.steps)})

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return that of the model."""
        return {"direction": task.model_shape}


@dataclass(frozen=True, eq=False)
class PartialModel(LocalModel):
    """Local steps whose moves count for the last numbers of a model alone, each client's share.

    A share of a step costs as much of a whole one: those layers are the only ones that are trained.
    """

    steps: Any  # of every client, or of one, and so are shares
    shares: Any = 1.0

    kind: ClassVar[str] = "partial_model"
    moves: ClassVar[bool] = False
    per_client: ClassVar[Mapping[str, Any]] = {"steps": 0, "shares": 1.0}

    def of_trained(self, after: Array, model: Array, load: int) -> Answer:
        """Return ℓ·(β − β after the steps), 0 where it was not trained."""
        numbers = int(np.prod(model.shape))
        trained = np.arange(numbers) >= numbers - trained_numbers(numbers, self.shares)
        mask = asarray_like(trained.astype(np.float32).reshape(model.shape), model)
        return Answer(load, {"moved": (model - after) * mask * load})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the share of every step, and a packet."""
        whole = super().cost(task, loads)
        return replace(whole, macs=whole.macs * np.asarray(self.shares))

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return the model's."""
        return {"moved": task.model_shape}


def trained_numbers(numbers: int, share: float) -> int:
    """Return how many of a model's numbers are in a share of it, at least one."""
    return max(1, round(share * numbers))


WORK: dict[str, type[Work]] = {
    work.kind: work
    for work in (
        Prepare,
        Embed,
        Gradient,
        WeightedGradient,
        LocalModel,
        LocalDirection,
        Embedded,
        FirstGradient,
        WindowGradient,
        Counts,
        Gram,
        Parity,
        BlockParity,
        ClippedMoments,
        ClippedGradient,
        Masked,
        GradientDelta,
        Rounded,
    )
}
"""Every kind of work that comes with the package."""


def work_to(work: Work) -> dict[str, Any]:
    """Return work as it travels: its kind, and its fields as plain values."""
    kind = type(work).kind
    if WORK.get(kind) is not type(work):
        kind = f"{type(work).__module__}:{type(work).__qualname__}"
    return {"kind": kind, **{name: _plain(value) for name, value in work.as_sent().items()}}


def work_from(facts: Mapping[str, Any], find: Callable[[str], type[Work] | None]) -> Work:
    """Return work that somebody asks for.

    Parameters
    ----------
    find
        Returns the class of a custom kind, ``module:Class``; None if it may not be used here.
    """
    kind = str(facts["kind"])
    given = {name: _read(value, find) for name, value in facts.items() if name != "kind"}
    known = WORK.get(kind) or find(kind)
    if known is None:
        raise InputError(f"the work {kind!r} is unknown here: {nearest(kind, list(WORK))}")
    return known.received(**given)


def _plain(value: Any) -> Any:
    if isinstance(value, Work):  # work on another kind of work
        return work_to(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _read(value: Any, find: Callable[[str], type[Work] | None]) -> Any:
    nested = isinstance(value, Mapping) and "kind" in value
    return work_from(value, find) if nested else value
