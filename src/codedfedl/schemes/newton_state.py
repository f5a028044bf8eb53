"""What `coded-newton` remembers of every client."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np

from codedfedl.arrays import FloatArray, IntArray, asarray_like
from codedfedl.core.gradients import GROWTH_OF_EMBEDDED
from codedfedl.core.masked import Anchor
from codedfedl.errors import InputError
from codedfedl.learning.sketch import Sketch
from codedfedl.planning.strata import sampling_excess
from codedfedl.schemes.newton_pace import PlannedNewton
from codedfedl.schemes.sketch_solve import Block, stacked

__all__ = ["NewtonState", "total_ridge"]

_T = TypeVar("_T")

MAX_MODEL = 1e30  # Of a model's entry: float32 holds it with room to spare.
_MORE_PATIENCE = 1.2  # times as long are rounds that wait for points, one after the other


@dataclass(frozen=True, eq=False, kw_only=True)
class NewtonState(PlannedNewton):
    """What the server remembers, from the first parity on.

    Attributes
    ----------
    sketch
        All parity together, in the order of the blocks.
    in_basis
        The models that clients are anchored at, by round, in the sketch's basis.
    moment : array of shape (q, c)
        Σ H̃_j·a_j over the clients with parity that have answered, and X̃_jᵀỸ_j over those that
        have not, in that basis: with H̃·β it is all that a step needs of the parity.
    damping : float
        ρ, the damping of all clients together; each has a share by its points.
    raised
        ρ_j of each client whose answers showed that its share is too small.
    weights : array of shape (n,)
        For how many points each client's parity and answers count, over those that it holds.
    weighted_points : int
        Points that all clients had embedded when the weights were set.
    anchors
        The model and the points of each client's last answer.
    gradients
        The last answers themselves, without the weights.
    checked
        Clients whose last two answers are over the same points: how much they curve is known.
    start_ridge : float
        λ_start·m beyond the objective's ridge, for which the start is the minimum of parity's loss.
    start_loss : float
        Half the squared error per point of the first model, over all points, predicted from parity.
    start_excess : float
        The relative excess of its objective, predicted likewise.
    estimate : float
        The current relative excess, estimated from the answers.
    patience : float
        How many times as long as planned rounds last, for clients to embed.
    extension : float, seconds
        How much longer the set-up lasts; above 0 while clients are asked for further parity.
    spent : float, seconds
        Set-up and rounds so far.
    least : array of shape (n,), optional
        Points that each client is to embed before it answers, where the plan changed.
    """

    sketch: Sketch
    moment: FloatArray
    weights: FloatArray
    weighted_points: int = 0
    in_basis: Mapping[int, FloatArray] = field(default_factory=dict)
    damping: float = 0.0
    raised: Mapping[int, float] = field(default_factory=dict)
    anchors: Mapping[int, Anchor] = field(default_factory=dict)
    gradients: Mapping[int, FloatArray] = field(default_factory=dict)
    checked: frozenset[int] = frozenset()
    start_ridge: float = 0.0
    start_loss: float = np.nan
    start_excess: float = np.nan
    estimate: float = np.inf
    patience: float = 1.0
    extension: float = 0.0
    spent: float = 0.0
    least: IntArray | None = None

    @classmethod
    def first(
        cls,
        planned: PlannedNewton,
        blocks: Mapping[int, Block],
        sketch: Sketch,
        weights: FloatArray,
    ) -> Self:
        """Return the state with the first parity, before anybody has answered."""
        moment = sketch.rmatvec(sketch.targets)
        state = cls(
            **vars(planned) | {"blocks": blocks}, sketch=sketch, moment=moment, weights=weights
        )
        return replace(state, weighted_points=int(state.mixed_points.sum()))

    def with_model(self, model: FloatArray) -> Self:
        """Set the model, rounded to the float32 that the clients receive."""
        if not np.abs(model).max() < MAX_MODEL:
            raise InputError(
                "coded-newton diverged: a client's gradient is not finite, or the step not damped"
            )
        return replace(self, model=asarray_like(model.astype(np.float32), self.model))

    @property
    def gradient(self) -> FloatArray:
        """Σ g_j(a_j) over the clients that have answered: all that a step needs of them."""
        total = np.zeros(self.task.model_shape)
        for client, gradient in self.gradients.items():  # float32: there may be very many
            total += self.weights[client] * gradient
        return total

    @property
    def mixed_points(self) -> IntArray:
        """How many points of each client are in its parity, shape (n,)."""
        points = np.zeros(self.task.clients, dtype=np.int64)
        for client, block in self.blocks.items():
            points[client] = block.points
        return points

    @property
    def round_deadline(self) -> float:
        """Seconds of the next round."""
        return self.plan.round_deadline * self.patience

    @property
    def answered_points(self) -> IntArray:
        """How many points each client's last answer is over, shape (n,)."""
        points = np.zeros(self.task.clients, dtype=np.int64)
        for client, anchor in self.anchors.items():
            points[client] = anchor.points
        return points

    @property
    def least_points(self) -> IntArray:
        """Points that clients embed before they answer: after a check, the same bring little."""
        least = np.zeros(self.task.clients, dtype=np.int64) if self.least is None else self.least
        more = np.zeros(self.task.clients)
        if self.patience > 1:
            checked = list(self.checked)
            more[checked] = GROWTH_OF_EMBEDDED * self.answered_points[checked]
        return np.maximum(least, np.ceil(more).astype(np.int64))

    @property
    def embedded_points(self) -> IntArray:
        """How many points of each client are in its parity or its last answer, shape (n,)."""
        return np.maximum(self.mixed_points, self.answered_points)

    def with_newcomers(self, points: Mapping[int, int]) -> Self:
        """Return the state with weights for clients that had none, by the points that they have."""
        if self.by_class is None or not (new := [j for j in points if self.weights[j] == 0]):
            return self
        embedded, weights = self.embedded_points, self.weights.copy()
        embedded[new] = [points[j] for j in new]
        weights[new] = self.by_class.weights(embedded)[new]
        return replace(self, weights=weights)

    @property
    def good_enough(self) -> bool:
        """Whether the answers say that the wanted excess is reached."""
        return self.estimate <= self.plan.wanted

    def judged(self, decrement: float, fresh: float = 1.0) -> "NewtonState":
        """Return the state with an estimate of its excess.

        Where more steps would bring less than more points, rounds become longer.

        A client that has answered represents its points by those of its last answer, at the cost of
        sampling; one that has not is as good as the start. The decrement gives the rest, as far as
        answers are to the last model, over a share `fresh` of all points: others say nothing.
        """
        heard, ridge, sampling = list(self.anchors), total_ridge(self), 0.0
        points = np.array([self.anchors[j].points for j in heard], dtype=np.int64)
        held = self.task.held.astype(np.float64)
        share = float(held[heard].sum() / held.sum())
        if heard:
            dimension = self.sketch.effective_dimension(ridge) * share
            counts, shift = None, 0.0
            if self.by_class is not None:
                counts, shift = self.by_class.counts[heard], self.by_class.shift
            sampling = share * sampling_excess(held[heard], points, dimension, counts, shift)
        unheard = (1 - share) * self.start_excess
        gained = decrement / max(self.sketch.smallest_objective(ridge), np.finfo(float).tiny)
        missed, settings = sampling + unheard, self.settings
        waits = gained < missed and self.by_class is not None and not self.federated
        waits = waits and settings.rounds is None and settings.deadline is None
        patience = self.patience * (_MORE_PATIENCE if waits else 1.0)
        estimate = missed + gained / fresh if fresh else np.inf
        return replace(self, estimate=estimate, patience=patience)

    @property
    def parity_ridge(self) -> float:
        """λ_start·m times the share of the parity that no answer has replaced yet."""
        unheard = [j for j in self.blocks if j not in self.anchors]
        points = sum(float(self.weights[j] * self.task.held[j]) for j in unheard)
        return self.start_ridge * points / self.represented_points

    @cached_property
    def places(self) -> dict[int, slice]:
        """Where each client's rows are in the sketch."""
        ends = np.cumsum([b.parity.features.shape[0] for b in self.blocks.values()]).tolist()
        return {j: slice(a, b) for j, a, b in zip(self.blocks, [0, *ends], ends, strict=False)}

    def with_sketch(self, blocks: Mapping[int, Block], sketch: Sketch, weights: FloatArray) -> Self:
        """Return the state with the parity of these clients, and weights of all."""
        changed = weights / np.where(self.weights > 0, self.weights, np.inf)
        state = replace(
            self,
            blocks=blocks,
            sketch=sketch,
            weights=weights,
            raised={j: damping * float(changed[j]) for j, damping in self.raised.items()},
            in_basis={},
        )
        state = state.with_models(self.anchors.values())
        state = replace(state, weighted_points=int(state.embedded_points.sum()))
        return replace(state, moment=state._moment_from(0))

    def without_clients(self, clients: Collection[int]) -> Self:
        """Return the state without the answers of some clients."""

        def others(known: Mapping[int, _T]) -> dict[int, _T]:
            return {j: value for j, value in known.items() if j not in clients}

        return replace(
            self,
            anchors=others(self.anchors),
            gradients=others(self.gradients),
            raised=others(self.raised),
        )

    def with_late(self, late: Mapping[int, Block]) -> Self:
        """Return the state with the parity of further clients.

        The damping grows with the points that it is for: every client keeps its share.
        """
        state = self.with_newcomers({j: block.points for j, block in late.items()})
        sketch = self.sketch.with_rows(*stacked(late, state.weights))
        state = replace(state, blocks={**self.blocks, **late}, sketch=sketch)
        grown = state.represented_points / self.represented_points
        moment = self.moment + state._moment_from(self.sketch.rows)
        return replace(state, moment=moment, damping=grown * self.damping)

    def _moment_from(self, first: int) -> FloatArray:
        """Return what the rows from `first` on contribute to the moment."""
        predictions = self.sketch.targets.copy()
        for client, rows in self.places.items():
            if client in self.anchors and rows.start >= first:
                model = self.in_basis[self.anchors[client].round]
                predictions[rows] = self.sketch.matvec(model, rows)
        return self.sketch.rmatvec(predictions[first:], slice(first, None))

    def with_models(self, anchors: Iterable[Anchor]) -> Self:
        """Return the state with the models of some anchors in the sketch's basis."""
        models = {
            anchor.round: anchor.model for anchor in anchors if anchor.round not in self.in_basis
        }
        known = {round: self.sketch.to_basis(model) for round, model in models.items()}
        return replace(self, in_basis={**self.in_basis, **known})

    def with_anchors(self, anchors: Mapping[int, Anchor]) -> Self:
        """Return the state after some clients have answered anew."""
        state = self.with_models(anchors.values())
        moment = self.moment.copy()
        for client, now in anchors.items():
            if client in self.places:
                rows, before = self.places[client], self.anchors.get(client)
                model = state.in_basis[now.round]
                if before is None:
                    change = self.sketch.matvec(model, rows) - self.sketch.targets[rows]
                else:
                    change = self.sketch.matvec(model - state.in_basis[before.round], rows)
                moment += self.sketch.rmatvec(change, rows)
        anchors = {**self.anchors, **anchors}
        in_basis = {now.round: state.in_basis[now.round] for now in anchors.values()}
        return replace(self, anchors=anchors, in_basis=in_basis, moment=moment)

    @cached_property
    def represented_points(self) -> float:
        """For how many points the parity that is there counts."""
        return float(sum(self.weights[j] * self.task.held[j] for j in self.blocks))


def total_ridge(state: NewtonState) -> float:
    """λ·m: losses here are sums over points."""
    return state.task.ridge * float(state.task.held.sum())
