"""What a cold start begins with: points that are embedded, labels that are counted, a gradient."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.gradients import Embedded
from codedfedl.core.task import Task
from codedfedl.core.work import Answer, Client, OnEmbedded, Work
from codedfedl.fleet import costs
from codedfedl.fleet.costs import Cost
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.strata import count_strata, strata

__all__ = ["Counts", "Embed", "FirstGradient"]


@dataclass(frozen=True)
class Embed(OnEmbedded):
    """Embed as many points as there is time for, and send nothing."""

    kind: ClassVar[str] = "embed"
    discloses: ClassVar[Disclosure | None] = None
    needs_model: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return nothing: what counts is how many are done."""
        return Answer(load, {})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        """Return no cost beyond embedding."""
        return Cost(np.zeros(task.clients), np.zeros(task.clients))

    def points_by(
        self, deadline: float, task: Task, fleet: Fleet, slowness: FloatArray, done: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Return the points that the deadline leaves time for."""
        seconds = costs.seconds_to_embed(task.feature_macs, task.workload, fleet, slowness)
        points = costs.embedded_by(deadline + done * seconds, seconds, task.held)
        return points, np.maximum(points - done, 0.0) * seconds

    def shapes(self, task: Task, points: int) -> Mapping[str, tuple[int, ...]]:
        """Return nothing."""
        return {}


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


@dataclass(frozen=True)
class Counts(Work):
    """How many points of each class a client holds: of all its points, whoever asks."""

    kind: ClassVar[str] = "counts"
    discloses: ClassVar[Disclosure | None] = Disclosure.COUNTS
    needs_model: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    exact: ClassVar[bool] = False

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
