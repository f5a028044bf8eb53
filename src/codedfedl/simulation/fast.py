"""The fast path: sums over all clients, without the answer of each.

`Simulation` goes without it where it is made with ``fast=False``; then every client answers by
itself (`core.client`), and a test shows that both give the same. These sums have a shortcut:

- *Gradients.* That of all points asked for is a quadratic, which reads a Gram matrix of q² numbers
  instead of the points. What the missing clients would have added is computed from their points,
  and subtracted. The gradient of parity, which a scheme adds with `Inbox.plus`, goes through the
  same Gram matrix. Settings that share a matrix, or miss the same client, share products.
- *Gradients of other learners.* See `simulation.networks`.
- *Gram matrices.* That of all points serves every setting.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, IntArray, Mask, asarray_like
from codedfedl.core.encoding import Gram
from codedfedl.core.gradients import Gradient, PointGradient
from codedfedl.core.protocol import SUM, Ask, Inbox
from codedfedl.learning.learner import Learner
from codedfedl.learning.least_squares import Quadratic
from codedfedl.simulation.client_data import Batch, SimulatedClient
from codedfedl.simulation.networks import summed_gradient
from codedfedl.simulation.quadratics import Grams, gram_of

MAX_DISTINCT_LOADS = 32  # A setting with more distinct loads has no Gram matrices of its own.


@dataclass(frozen=True, eq=False)
class Question:
    """What a setting has asked, and who arrived.

    Attributes
    ----------
    loads, arrived : arrays of shape (n,)
    model
        That the ask is about.
    steady
        Whether these loads occur often enough for a Gram matrix.
    """

    setting: str
    ask: Ask
    loads: IntArray
    arrived: Mask
    model: Array
    learner: Learner
    steady: bool = True

    @property
    def is_sum(self) -> bool:
        """Whether a plain sum over the clients is asked for."""
        return self.ask.combine is SUM and self.ask.noise is None

    @property
    def points(self) -> float:
        """Points that the answers cover."""
        return float(self.loads[self.arrived].sum())


class FastSums:
    """All clients of a simulation in one place.

    Parameters
    ----------
    settings
        How many settings share the mini-batches.
    """

    def __init__(self, batches: Sequence[Batch], settings: int = 1, seed: int = 0) -> None:
        self.batches, self.seed = batches, seed
        self.grams = Grams(batches, settings)
        self._loads: dict[str, set[int]] = {}  # of each setting

    def inboxes(self, questions: Sequence[Question]) -> dict[int, Inbox]:
        """Return the inboxes that have a shortcut, by the number of the question."""
        questions = [
            replace(q, steady=not q.ask.setup and self.seen(q.setting, q.loads)) for q in questions
        ]
        inboxes: dict[int, Inbox] = {}
        linear = []
        for k, q in enumerate(questions):
            work: Any = type(q.ask.work)  # which may be a user's own
            if not q.is_sum:
                continue
            if work.answer is PointGradient.answer and not q.learner.quadratic:
                inboxes[k] = self._of_points(q)
            elif work.answer is PointGradient.answer and work.terms is Gradient.terms:
                linear.append(k)
            elif work.answer is Gram.answer and q.arrived.all():
                gram = gram_of(self.batches)
                both = {"hessian": gram.hessian, "moment": gram.moment}
                inboxes[k] = Inbox(q.arrived, q.points, both)
        sums = self.gradients([questions[k] for k in linear])
        return inboxes | dict(zip(linear, sums, strict=True))

    def seen(self, setting: str, loads: IntArray) -> bool:
        """Return whether a setting has asked for these loads before, and for few others.

        A Gram matrix takes as long as many gradients of the same points, so it pays only for loads
        that come back. The setting's earlier rounds alone decide that, so that a run that is
        resumed ends with the same bits.
        """
        hashes, key = self._loads.setdefault(setting, set()), hash(loads.tobytes())
        known = key in hashes
        if len(hashes) <= MAX_DISTINCT_LOADS:
            hashes.add(key)
        return known and len(hashes) <= MAX_DISTINCT_LOADS

    def _of_points(self, q: Question) -> Inbox:
        """Sum gradients at one model in one pass, each point with its weight."""
        client = partial(SimulatedClient, self.batches, seed=self.seed, learner=q.learner)
        loads = np.where(q.arrived, q.loads, 0)
        return Inbox(q.arrived, q.points, summed_gradient(q.ask.work, q.model, client, loads))

    def gradients(self, questions: Sequence[Question]) -> list[Inbox]:
        """Sum the gradients that arrived, for many settings, each on its own mini-batch."""
        inboxes: dict[int, Inbox] = {}
        numbers: list[int] = [getattr(q.ask.work, "batch") for q in questions]  # noqa: B009
        for b in sorted(set(numbers)):
            places = [k for k, number in enumerate(numbers) if number == b]
            sums = self._gradients_of_batch(b, [questions[k] for k in places])
            inboxes |= dict(zip(places, sums, strict=True))
        return [inboxes[k] for k in range(len(questions))]

    def _gradients_of_batch(self, b: int, questions: Sequence[Question]) -> list[Inbox]:
        batch, models = self.batches[b], [q.model for q in questions]
        full = [bool((q.loads == batch.held).all()) for q in questions]
        by_gram = [q.steady or all_points for q, all_points in zip(questions, full, strict=True)]
        # By a Gram matrix, the points that did not arrive are read and subtracted.
        read = np.array(
            [
                np.where(q.arrived != known, q.loads, 0)
                for q, known in zip(questions, by_gram, strict=True)
            ]
        )
        sums = self._gradients_of_points(batch, read, models)
        sharing = [k for k, all_points in enumerate(full) if all_points]
        products = self._products(batch.everything, [models[k] for k in sharing]) if sharing else []
        shared = dict(zip(sharing, products, strict=True))
        inboxes = []
        for k, (q, part) in enumerate(zip(questions, sums, strict=True)):
            if k in shared:
                inboxes.append(Inbox(q.arrived, q.points, {"gradient": shared[k] - part}))
            elif by_gram[k]:
                gradient = partial(self._gradient, b, q, part)
                lazy = _LazySum(gradient)
                inboxes.append(_GramInbox(q.arrived, q.points, lazy, gradient=gradient, at=q.model))
            else:
                inboxes.append(Inbox(q.arrived, q.points, {"gradient": part}))
        return inboxes

    def _gradient(self, b: int, q: Question, missing: Array, added: Quadratic | None) -> Array:
        """Return the sum of the gradients that arrived, and that of a quadratic."""
        (product,) = self._products(self.grams.of(b, q.loads, added), [q.model])
        return product - missing

    def _products(self, quadratic: Quadratic, models: Sequence[Array]) -> list[Array]:
        """Return the quadratic's gradient at each model."""
        product, c = quadratic.hessian @ side_by_side(models), models[0].shape[1]
        return [product[:, k * c : (k + 1) * c] - quadratic.moment for k in range(len(models))]

    def _gradients_of_points(
        self, batch: Batch, read: IntArray, models: Sequence[Array]
    ) -> list[Array]:
        """Sum gradients over the first points of each client, `read` of shape (settings, n)."""
        xp, c = array_namespace(models[0]), models[0].shape[1]
        totals = [xp.zeros_like(model) for model in models]
        for j in np.flatnonzero(read.any(axis=0)).tolist():
            settings = np.flatnonzero(read[:, j]).tolist()
            asked = [models[s] for s in settings]
            part = _client_gradients(batch, j, read[settings, j], asked)
            for k, s in enumerate(settings):
                totals[s] += part[:, k * c : (k + 1) * c]
        return totals


@dataclass(frozen=True, eq=False)
class _GramInbox(Inbox):
    """An inbox whose sum is computed when it is read, with what the scheme adds to it."""

    gradient: Callable[[Quadratic | None], Array] = lambda _: None
    at: Array = None

    def plus(self, quadratic: Quadratic, model: Array) -> Array:
        """Return the clients' gradients and that of a quadratic, in one product."""
        return self.gradient(quadratic) if model is self.at else super().plus(quadratic, model)


class _LazySum(Mapping[str, Array]):
    """The clients' gradient, computed if anybody reads it."""

    def __init__(self, gradient: Callable[[Quadratic | None], Array]) -> None:
        self._gradient = gradient

    def __getitem__(self, name: str) -> Array:
        if name != "gradient":
            raise KeyError(name)
        return self._gradient(None)

    def __iter__(self) -> Iterator[str]:
        return iter(("gradient",))

    def __len__(self) -> int:
        return 1


def side_by_side(models: Sequence[Array]) -> Array:
    """Return models as the columns of one matrix."""
    return models[0] if len(models) == 1 else array_namespace(models[0]).concat(models, axis=1)


def _client_gradients(batch: Batch, client: int, loads: IntArray, models: Sequence[Array]) -> Array:
    """Return a client's gradients for several models, each over its own load: (q, models·c)."""
    features, targets = batch.client(client, 0, int(loads.max()))
    residuals = features @ side_by_side(models)
    xp, shape = array_namespace(residuals), (len(targets), len(models), targets.shape[1])
    each = xp.reshape(residuals, shape)  # not a copy
    each -= targets[:, None, :]
    if (loads < len(targets)).any():
        each *= asarray_like((np.arange(len(targets))[:, None] < loads)[:, :, None], residuals)
    return features.T @ residuals
