"""How a server descends along gradients: plain steps, momentum, Adam, and for quadratics Krylov's.

An optimiser is a frozen dataclass with one pure function. What it remembers is a value that it is
given and returns; gradients are means over points, with the ridge in them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, asarray_like, to_host
from codedfedl.errors import InputError
from codedfedl.io.names import member_of, nearest
from codedfedl.learning.transforms import Adaptive, Trace, Transform

_MIN_NEW_SHARE = 1e-6  # A direction of which a smaller share is new is rounding.
_MIN_GAIN_SHARE = 1e-6  # Steps that lower the objective by a smaller share are not worth it.
_QUESTION_STEPS = 100.0
"""Length of a question, in first steps: the targets are then small beside the predictions."""


@dataclass(frozen=True)
class Schedule:
    """Step sizes that fall at some epochs.

    Parameters
    ----------
    step
        The first step size (the paper's μ).
    decay
        What it is multiplied by at each of `decay_epochs`, counted from 0.
    chosen
        Whether somebody asked for these steps.
    """

    step: float = 6.0
    decay: float = 0.8
    decay_epochs: tuple[int, ...] = (40, 65)
    chosen: bool = True

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise InputError(f"training.step is {self.step:g}: must be above 0")
        if not 0 < self.decay <= 1:
            raise InputError(f"training.decay is {self.decay:g}: must be above 0 and at most 1")

    def at(self, epoch: int) -> float:
        """Return the step size of an epoch."""
        return self.step * self.decay ** sum(epoch >= when for when in self.decay_epochs)


def chosen_optimiser(name: str, *, steps: bool, absent: bool = False) -> str:
    """Return the name of an optimiser.

    ``auto`` is gradient descent where `steps` are asked for, and Nesterov's where clients may be
    absent: a Krylov method needs the answers of all.
    """
    by_itself = "gd" if steps else "nesterov" if absent else "block-cg"
    return by_itself if name == "auto" else name


def step(model: Array, total: Array, points: float, size: float, ridge: float) -> Array:
    """β − μ(g + λβ) with g = total/points (section 2.1), in as few passes as possible."""
    return (1 - size * ridge) * model - (size / points) * total


class Step(NamedTuple):
    """What an optimiser returns.

    Attributes
    ----------
    model
        The best that is known.
    question
        The model at which the next gradient is wanted.
    memory
        For the next step.
    """

    model: Array
    question: Array
    memory: Any


class Optimiser(ABC):
    """A rule that turns gradients into the next model."""

    same_points: ClassVar[bool] = False
    """Whether every gradient must be over the same points, or the steps make no sense."""

    quadratic: ClassVar[bool] = False
    """Whether the loss must be a quadratic (`Learner.quadratic`), and a model a matrix."""

    @abstractmethod
    def step(self, asked: Array, gradient: Array, size: float, memory: Any) -> Step:
        """Learn from the gradient at the model that was asked for.

        Parameters
        ----------
        size
            A step that is stable: at most one over the largest curvature, where it is known.
        memory
            What the last step returned; None before the first.
        """

    def settled(self, memory: Any) -> bool:
        """Return whether more steps would gain nothing."""
        return False

    def gains(self, memory: Any) -> tuple[float, float]:
        """Return by how much the last step lowered the objective, and all steps; if it is known."""
        return np.inf, 0.0


@dataclass(frozen=True)
class Chain(Optimiser):
    """Gradient descent, β − μ·g, with a gradient that some transforms change, one after another."""

    transforms: tuple[Transform, ...] = ()

    def step(self, asked: Array, gradient: Array, size: float, memory: Any) -> Step:
        """Step along the direction that the last transform returns."""
        memories = memory or (None,) * len(self.transforms)
        remembered = []
        for transform, before in zip(self.transforms, memories, strict=True):
            gradient, after = transform.apply(gradient, before)
            remembered.append(after)
        model = asked - size * gradient
        return Step(model, model, tuple(remembered))


@dataclass(frozen=True, eq=False)
class _Momentum:
    """Nesterov's memory: the last model, the last question and its gradient, the count."""

    model: Array
    asked: Array
    gradient: Array
    steps: int
    curvature: float


@dataclass(frozen=True)
class Nesterov(Optimiser):
    """Accelerated descent, with a step no longer than the curvature that the gradients show.

    The k-th question lies beyond the k-th model by k/(k + 3) of the last move. From gradients over
    different points the curvature is less accurate, but still of the right size.

    Parameters
    ----------
    measures
        Whether the curvature is taken from the gradients; not where these are mostly noise.
    """

    measures: bool = True

    def step(self, asked: Array, gradient: Array, size: float, memory: Any) -> Step:
        """Step down from the question, then extrapolate."""
        if memory is None:
            memory = _Momentum(asked, asked, gradient, 0, 0.0)
        curvature = memory.curvature
        if self.measures:
            curvature = max(curvature, _curvature(memory, asked, gradient))
        model = asked - min(size, 1 / max(curvature, 1e-300)) * gradient
        steps = memory.steps
        question = model + steps / (steps + 3) * (model - memory.model)
        return Step(model, question, _Momentum(model, asked, gradient, steps + 1, curvature))


def _curvature(memory: _Momentum, asked: Array, gradient: Array) -> float:
    """Return ⟨Δg, Δβ⟩/‖Δβ‖² of the last two questions: never more than the largest curvature."""
    xp = array_namespace(asked)
    moved = asked - memory.asked
    length = float(xp.sum(moved * moved))
    return float(xp.sum(moved * (gradient - memory.gradient))) / length if length > 0 else 0.0


@dataclass(frozen=True, eq=False)
class _Space:
    """What is known of a quadratic: its gradient at `start`, and its Hessian on some directions.

    Attributes
    ----------
    start, gradient : arrays of shape (q, c)
    directions, products : arrays of shape (q, k)
        Orthonormal columns Q, and H·Q.
    slope : array of shape (q, c)
        The gradient at the minimum over start + span(Q).
    lowered, gain
        By how much the objective is lower there than at the start, and by the last step alone.
    """

    start: FloatArray
    gradient: FloatArray
    directions: FloatArray
    products: FloatArray
    slope: FloatArray
    lowered: float = 0.0
    gain: float = np.inf


@dataclass(frozen=True)
class BlockKrylov(Optimiser):
    """Block conjugate gradients: all label columns share one Krylov space.

    Each gradient shows the Hessian on as many new directions as there are columns; the model is the
    minimum over all directions seen, and a step down from there, which costs nothing. The next
    question is what is new in the slope at that minimum, much enlarged: a gradient is linear, so
    nothing is lost, and the clients' float32 keeps its digits. Directions that are not new are left
    out (deflation). All are kept, so that rounding does not spoil conjugacy.
    """

    same_points: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    def settled(self, memory: Any) -> bool:
        """Return whether the last step lowered the objective by next to nothing."""
        gain, lowered = self.gains(memory)
        return gain <= _MIN_GAIN_SHARE * lowered

    def gains(self, memory: Any) -> tuple[float, float]:
        """Return both, over the points that the gradients are over."""
        return (np.inf, 0.0) if memory is None else (memory.gain, memory.lowered)

    def step(self, asked: Array, gradient: Array, size: float, memory: Any) -> Step:
        """Minimise over the directions seen."""
        here, slope = (to_host(array).astype(np.float64) for array in (asked, gradient))
        if memory is None:
            none = np.zeros((len(here), 0))
            memory, best, largest = _Space(here, slope, none, none, slope), here, 1 / size
        else:
            memory, best, largest = _minimised(_extended(memory, here, slope))
        model = best - memory.slope / max(largest, 1 / size)
        length = _QUESTION_STEPS * max(float(np.linalg.norm(memory.gradient)) * size, 1e-30)
        question = memory.start + length * _new_directions(memory.directions, memory.slope)
        return Step(_float32_like(model, asked), _float32_like(question, asked), memory)


def _float32_like(array: FloatArray, other: Array) -> Array:
    return asarray_like(array.astype(np.float32), other)


def _new_directions(directions: FloatArray, slope: FloatArray) -> FloatArray:
    """Return orthonormal columns for what is new in the slope; 0 for columns with nothing new."""
    left = slope / np.maximum(np.linalg.norm(slope, axis=0), 1e-300)
    for _ in range(2):  # once more, for what rounding left
        left = left - directions @ (directions.T @ left)
    basis, sizes, _ = np.linalg.svd(left, full_matrices=False)
    return np.asarray(basis * (sizes > _MIN_NEW_SHARE))


def _extended(space: _Space, asked: FloatArray, slope: FloatArray) -> _Space:
    """Learn the Hessian on the directions of the question."""
    moved, change = asked - space.start, slope - space.gradient
    sizes = np.linalg.norm(moved, axis=0)
    new = sizes > 0
    moved, change = moved[:, new] / sizes[new], change[:, new] / sizes[new]
    return replace(
        space,
        directions=np.hstack([space.directions, moved]),
        products=np.hstack([space.products, change]),
    )


def _minimised(space: _Space) -> tuple[_Space, FloatArray, float]:
    """Find the minimum over the directions seen, and the largest curvature among them."""
    inner = space.directions.T @ space.products
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    largest = max(float(values[-1]), 1e-300) if len(values) else 1e-300
    sound = values > 1e-7 * largest
    basis = vectors[:, sound]
    down = basis.T @ (space.directions.T @ space.gradient)
    along = -basis @ (down / values[sound][:, None])
    lowered = float((down**2 / values[sound][:, None]).sum() / 2)
    known = replace(
        space,
        slope=space.gradient + space.products @ along,
        lowered=lowered,
        gain=lowered - space.lowered,
    )
    return known, space.start + space.directions @ along, largest


_AS_PUBLISHED = Adaptive(square_decay=0.99, floor=1e-3, corrected=False)  # by Reddi et al.
OPTIMISERS: dict[str, Optimiser] = {
    "gd": Chain(),
    "nesterov": Nesterov(),
    "block-cg": BlockKrylov(),
    "sgd": Chain(),
    "momentum": Chain((Trace(),)),
    "adam": Chain((Adaptive(),)),
    "yogi": Chain((Adaptive(additive=True),)),
    "adam-uncorrected": Chain((_AS_PUBLISHED,)),
    "yogi-uncorrected": Chain((replace(_AS_PUBLISHED, additive=True),)),
}
"""Every optimiser by its name; ``sgd`` is ``gd`` by the name that networks know it by."""


def optimiser(scheme: str, name: str, *, same_points: bool) -> Optimiser:
    """Return an optimiser for a scheme, or say why it cannot have it.

    A name is one of `OPTIMISERS`, or ``module:Class`` of a user's own.

    Parameters
    ----------
    same_points
        Whether every gradient of the scheme can be over the same points.
    """
    chosen = _by_name(scheme, name)
    if chosen.same_points and not same_points:
        raise InputError(
            f"{scheme}.optimiser is {name!r}, which needs everybody's answer in every round: use "
            "nesterov, or a scheme that waits for all, such as balanced"
        )
    return chosen


def _by_name(scheme: str, name: str) -> Optimiser:
    if name in OPTIMISERS:
        return OPTIMISERS[name]
    if not isinstance(name, str) or ":" not in name:
        hint = nearest(str(name), list(OPTIMISERS))
        raise InputError(f"{scheme}.optimiser is {name!r}: {hint}")
    made = member_of(name, f"{scheme}.optimiser")
    if not isinstance(made, type) or not issubclass(made, Optimiser):
        raise InputError(
            f"{scheme}.optimiser {name!r} is not a subclass of "
            "codedfedl.learning.optimisers.Optimiser: derive it"
        )
    return made()
