"""What a kind of work is, and the client that does it.

A kind of work is a frozen dataclass with two methods, `answer` and `cost`. Its fields travel to the
clients as JSON, so they are numbers, strings and lists. Those of the package are in `core.client`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.task import Task
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.learner import Learner, LeastSquares

Points = tuple[Array, Array]
"""Features of shape (k, q) and targets of shape (k, c)."""


class Client(Protocol):
    """A client's own data, as its work sees them: all points are embedded and in random order."""

    @property
    def learner(self) -> Learner:
        """What is trained."""

    @property
    def points(self) -> int:
        """Number of points that it holds."""

    @property
    def batches(self) -> int:
        """Number of mini-batches, to which its points are dealt in turn."""

    def batch(self, b: int) -> Points:
        """Return the points of a mini-batch."""

    def first(self, count: int) -> Iterator[Points]:
        """Yield its first `count` points, in one part or several."""

    def code_stream(self, first: int, *rest: int) -> np.random.Generator:
        """Return private randomness for a code; the numbers identify a repeatable stream."""


@dataclass(frozen=True, eq=False)
class ArrayClient:
    """A client whose points lie in two arrays, mini-batch after mini-batch.

    By default, least squares are trained.
    """

    features: Array
    targets: Array
    batches: int
    code_stream: Callable[..., np.random.Generator]
    learner: Learner = field(default=None, kw_only=True)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not self.learner:
            linear = LeastSquares(self.features.shape[1], self.targets.shape[1])
            object.__setattr__(self, "learner", linear)

    @property
    def points(self) -> int:
        """Number of points that it holds."""
        return int(self.targets.shape[0])

    def batch(self, b: int) -> Points:
        """Return the points of a mini-batch: the first mini-batches may have one more."""
        rows = slice(self.batch_start(b), self.batch_start(b + 1))
        return self.features[rows], self.targets[rows]

    def batch_start(self, b: int) -> int:
        """Return where a mini-batch begins."""
        size, more = divmod(self.points, self.batches)
        return b * size + min(b, more)

    def first(self, count: int) -> Iterator[Points]:
        """Yield its first points."""
        yield self.features[:count], self.targets[:count]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a client.

    Attributes
    ----------
    points
        Points that the answer covers; 0 if a client has nothing to send yet.
    mixed
        The smallest number of points behind any value in it; by default `points`.
    """

    points: int
    arrays: dict[str, Array]
    mixed: int | None = None

    @property
    def least_mixed(self) -> int:
        """The smallest number of points behind any value."""
        return self.points if self.mixed is None else self.mixed


@dataclass(frozen=True)
class Window:
    """The time for which a client computes what it can, before it answers.

    Attributes
    ----------
    seconds
        From the moment on at which it has the model.
    least
        Points of an answer: a client that has not finished so many when the time is up computes on
        until it has, on the model that it began with.
    """

    seconds: float
    least: int = 1


class Work(ABC):
    """A kind of work that clients are asked to do."""

    kind: ClassVar[str]

    needs_model: ClassVar[bool] = True
    """Whether the model is sent to the client first."""

    embeds: ClassVar[bool] = True
    """Whether a client must embed its points first."""

    once: ClassVar[bool] = False
    """Whether a client does it once in a federation: asked again, it sends the same."""

    discloses: ClassVar[Disclosure | None] = Disclosure.GRADIENTS
    """What a single answer shows to the server; None if nothing is sent."""

    exact: ClassVar[bool] = True
    """Whether answers are noiseless sums: two over almost the same points then reveal single ones.
    Not so where nothing is sent."""

    moves: ClassVar[bool] = False
    """Whether an answer is a model times its points, which differs little from the one asked about:
    what is rounded is the difference."""

    per_client: ClassVar[Mapping[str, Any]] = {}
    """Fields with an entry for each client along the last axis, and what is in their place where
    the work is described without any client's."""

    @abstractmethod
    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return what a client sends for its first `load` points."""

    @abstractmethod
    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return what it costs every client, without embedding."""

    def available(self, task: Task) -> IntArray:
        """Return how many points each client has for it: of its `batch`, or all, shape (n,)."""
        batch = getattr(self, "batch", None)
        return task.held if batch is None else np.asarray(task.points[batch])

    def timed(self, client: Client, load: int, model: Array, clock: Callable[[], float]) -> Answer:
        """Return what a real client sends, whose clock ends a window; `answer` where there is none.

        Parameters
        ----------
        clock
            Returns seconds. One that stands still answers for `load` points: a replay.
        """
        return self.answer(client, load, model)

    def unpacked(
        self, arrays: Mapping[str, Array], points: int, model: Array
    ) -> Mapping[str, Array]:
        """Return the arrays of `timed` in the form of `answer`'s: as they are, unless overridden.

        They may be anybody's: what was not packed so is an InputError.
        """
        return arrays

    def for_client(self, j: int) -> Self:
        """Return client j's part, where clients are asked for different things."""
        parts = {name: _entry(getattr(self, name), j) for name in self.per_client}
        return replace(self, **parts) if parts else self  # type: ignore[type-var]

    @property
    def common(self) -> Self:
        """The part that is the same for all clients, without what `for_client` sets."""
        return replace(self, **self.per_client) if self.per_client else self  # type: ignore[type-var]

    @property
    def plain(self) -> "Work":
        """The work without protection, whose random delays it shares: itself, by default."""
        return self

    @property
    def window(self) -> Window | None:
        """For how long a client computes, where time and not a load decides; None elsewhere."""
        return None

    @property
    def elastic(self) -> bool:
        """Whether a client may answer for fewer points than it is asked for."""
        return type(self).load is not Work.load or self.window is not None

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Return for how many points each client answers: as asked, unless overridden.

        Parameters
        ----------
        embedded, answered, held : arrays of shape (n,)
            Points that each client has embedded, covered in its last answer, and holds.
        """
        return asked

    def points_by(
        self, deadline: float, task: Task, fleet: Fleet, slowness: FloatArray, done: FloatArray
    ) -> tuple[IntArray, FloatArray] | None:
        """Return how many points each client can finish by a deadline, and its processor's time.

        None for work whose load does not depend on the time.

        Parameters
        ----------
        done : array of shape (n,)
            Points that each client has embedded already, in parts of a point.
        """
        return None

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]] | None:
        """Return the required shapes of an answer's arrays for `points` points; None if unknown."""
        return None

    def most_weight(self, client: int, points: int, held: float) -> float | None:
        """Return for how many points an answer's gradient counts at most; None if it has none.

        Parameters
        ----------
        points, held
            That the client answers for, and that it has.
        """
        return None

    def squared_weights(self, points: IntArray) -> list[float] | None:
        """Return Σw² behind one client's parity of every mini-batch; None if it sends none."""
        return None

    def as_sent(self) -> dict[str, Any]:
        """Return the fields as they travel to a client."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def received(cls, **fields: Any) -> Self:
        """Return the work from its fields as decoded from JSON."""
        return cls(**fields)


def _entry(values: Any, j: int) -> Any:
    """Return client j's entry, as a plain value; one value is every client's."""
    return values if np.ndim(values) == 0 else np.asarray(values)[..., j].tolist()


class OnEmbedded(Work):
    """Work on the points that a client has embedded so far, up to the load asked for."""

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Return the embedded points, at most those asked for."""
        return np.minimum(asked, embedded)


@dataclass(frozen=True, eq=False)
class Wrapping(Work):
    """Another kind of work whose answers travel in another form."""

    work: Work

    def __post_init__(self) -> None:
        for name in ("needs_model", "embeds", "once", "exact", "moves"):
            object.__setattr__(self, name, getattr(self.work, name))  # as in the wrapped work

    def for_client(self, j: int) -> Self:
        """Return client j's part."""
        return replace(self, work=self.work.for_client(j))

    @property
    def common(self) -> Self:
        """The part that is the same for all clients."""
        return replace(self, work=self.work.common)

    @property
    def plain(self) -> Work:
        """The wrapped work."""
        return self.work.plain

    @property
    def elastic(self) -> bool:
        """As in the wrapped work."""
        return self.work.elastic

    @property
    def window(self) -> Window | None:
        """As in the wrapped work."""
        return self.work.window

    @property
    def batch(self) -> int | None:
        """The mini-batch of the wrapped work; None if it covers all."""
        return getattr(self.work, "batch", None)

    def available(self, task: Task) -> IntArray:
        """Return the points that the wrapped work has."""
        return self.work.available(task)

    def load(
        self, asked: IntArray, embedded: IntArray, answered: IntArray, held: IntArray
    ) -> IntArray:
        """Return the wrapped work's loads."""
        return self.work.load(asked, embedded, answered, held)

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return the wrapped work's cost."""
        return self.work.cost(task, loads)

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]] | None:
        """Return the shapes of the wrapped work."""
        return self.work.shapes(task, points)

    def most_weight(self, client: int, points: int, held: float) -> float | None:
        """Return that of the wrapped work."""
        return self.work.most_weight(client, points, held)

    def squared_weights(self, points: IntArray) -> list[float] | None:
        """Return those of the wrapped work."""
        return self.work.squared_weights(points)
