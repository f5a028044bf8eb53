"""What `coded-newton` remembers of every client, and the step that it takes from it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like, to_host
from codedfedl.core.masked import Anchor
from codedfedl.core.protocol import Reply
from codedfedl.errors import InputError
from codedfedl.learning.sketch import Sketch
from codedfedl.planning.strata import sampling_excess
from codedfedl.schemes.newton_pace import PlannedNewton
from codedfedl.schemes.sketch_solve import Block, stacked

__all__ = [
    "NewtonState",
    "anchored",
    "assumed_curvature",
    "client_damping",
    "client_share",
    "double",
    "needed_damping",
    "newton_step",
    "total_ridge",
]

_T = TypeVar("_T")

MAX_MODEL = 1e30  # Of a model's entry: float32 holds it with room to spare.
_TOO_CURVED = 1.8  # times what was assumed; at 2 a step no longer helps


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
    anchors
        The model and the points of each client's last answer.
    gradients
        The last answers themselves.
    start_loss : float
        Half the squared error per point of the first model, over all points, predicted from parity.
    start_excess : float
        The relative excess of its objective, predicted likewise.
    estimate : float
        The current relative excess, estimated from the answers; ∞ if it is not needed.
    extension : float, seconds
        How much longer the set-up lasts; above 0 while clients are asked for further parity.
    spent : float, seconds
        Set-up and rounds so far.
    least : array of shape (n,), optional
        Points that each client is to embed before it answers, where the plan changed.
    """

    sketch: Sketch
    moment: FloatArray
    in_basis: Mapping[int, FloatArray] = field(default_factory=dict)
    damping: float = 0.0
    raised: Mapping[int, float] = field(default_factory=dict)
    anchors: Mapping[int, Anchor] = field(default_factory=dict)
    gradients: Mapping[int, FloatArray] = field(default_factory=dict)
    start_loss: float = np.nan
    start_excess: float = np.nan
    estimate: float = np.inf
    extension: float = 0.0
    spent: float = 0.0
    least: IntArray | None = None

    @classmethod
    def first(cls, planned: PlannedNewton, blocks: Mapping[int, Block], sketch: Sketch) -> Self:
        """Return the state with the first parity, before anybody has answered."""
        moment = sketch.rmatvec(sketch.targets)
        return cls(**vars(planned) | {"blocks": blocks}, sketch=sketch, moment=moment)

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
        for gradient in self.gradients.values():  # float32 as it came: there may be very many
            total += gradient
        return total

    @property
    def mixed_points(self) -> IntArray:
        """How many points of each client are in its parity, shape (n,)."""
        points = np.zeros(self.task.clients, dtype=np.int64)
        for client, block in self.blocks.items():
            points[client] = block.points
        return points

    @property
    def good_enough(self) -> bool:
        """Whether the answers say that the wanted excess is reached."""
        return self.estimate <= self.plan.wanted

    def judged(self, decrement: float) -> "NewtonState":
        """Return the state with an estimate of its excess.

        A client that has answered represents its points by those of its last answer, at the cost of
        sampling; one that has not is as good as the start. The decrement gives the rest.
        """
        task, heard = self.task, list(self.anchors)
        points = np.array([self.anchors[j].points for j in heard], dtype=np.int64)
        held, everybody = task.held[heard].astype(np.float64), float(task.held.sum())
        ridge = total_ridge(self)
        sampling = 0.0
        if heard:
            dimension = self.sketch.effective_dimension(ridge) * held.sum() / everybody
            sampling = sampling_excess(held, points, dimension) * held.sum() / everybody
        unheard = (1 - held.sum() / everybody) * self.start_excess
        gained = decrement / max(self.sketch.smallest_objective(ridge), np.finfo(float).tiny)
        return replace(self, estimate=sampling + unheard + gained)

    @cached_property
    def places(self) -> dict[int, slice]:
        """Where each client's rows are in the sketch."""
        ends = np.cumsum([b.parity.features.shape[0] for b in self.blocks.values()]).tolist()
        return {j: slice(a, b) for j, a, b in zip(self.blocks, [0, *ends], ends, strict=False)}

    def with_sketch(self, blocks: Mapping[int, Block], sketch: Sketch) -> Self:
        """Return the state with the parity of these clients."""
        state = replace(self, blocks=blocks, sketch=sketch, in_basis={})
        state = state.with_models(self.anchors.values())
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
        sketch = self.sketch.with_rows(*stacked(late))
        state = replace(self, blocks={**self.blocks, **late}, sketch=sketch)
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
        """Points of the clients whose parity is there."""
        return float(self.task.held[list(self.blocks)].sum())


def double(array: Array) -> FloatArray:
    """Return an array on the host, in double precision."""
    return to_host(array).astype(np.float64)


def total_ridge(state: NewtonState) -> float:
    """λ·m: losses here are sums over points."""
    return state.task.ridge * float(state.task.held.sum())


def client_share(state: NewtonState, client: int) -> float:
    """Return a client's points over those of the clients with parity."""
    return float(state.task.held[client]) / state.represented_points


def client_damping(state: NewtonState, client: int) -> float:
    """ρ_j."""
    return max(client_share(state, client) * state.damping, state.raised.get(client, 0.0))


def assumed_curvature(state: NewtonState, client: int, moved: FloatArray) -> FloatArray:
    """Return how much a client's parity curves along the columns of `moved`, shape (c,).

    `moved` is in the sketch's basis. A client without parity is assumed to curve as all others do.
    """
    if client in state.places:
        change = state.sketch.matvec(moved, state.places[client])
        return np.asarray((change**2).sum(0))
    curvature = (moved * state.sketch.apply_hessian(moved)).sum(0)
    return np.asarray(client_share(state, client) * curvature)


def needed_damping(
    true: FloatArray, assumed: FloatArray, squares: FloatArray, damping: float
) -> float:
    """Return the damping that would bound the curvature; 0 if it is bounded.

    Parameters
    ----------
    true, assumed, squares : arrays of shape (c,)
        Curvature that answers show and that parity has, and what a damping of 1 adds to it.
    """
    wrong = true > _TOO_CURVED * (assumed + damping * squares)
    return float(((true - assumed)[wrong] / squares[wrong]).max(initial=0.0))


def anchored(state: NewtonState, replies: Iterable[Reply], *, damped: bool) -> NewtonState:
    """Move the anchors of all clients that answered; damp more where parity was too flat."""
    replies = list(replies)
    anchors, gradients, raised = {}, dict(state.gradients), dict(state.raised)
    models = {reply.round: reply.model for reply in replies}
    now_at = {round: Anchor(double(model), 0, round) for round, model in models.items()}
    state = state.with_models(now_at.values())
    shape = tuple(state.model.shape)
    for reply in replies:
        j, gradient = reply.client, to_host(reply.arrays["gradient"])
        if gradient.shape != shape or not np.isfinite(gradient).all():
            raise InputError(
                f"the gradient of client {j} has shape {gradient.shape} or is not "
                f"finite: must be finite numbers of shape {shape}"
            )
        now = replace(now_at[reply.round], points=reply.points)
        before = state.anchors.get(j)
        if damped and before is not None and before.points == now.points:
            moved, damping = now.model - before.model, client_damping(state, j)
            true = (moved * (double(gradient) - gradients[j])).sum(0)
            along = state.in_basis[now.round] - state.in_basis[before.round]
            assumed = assumed_curvature(state, j, along)
            needed = needed_damping(true, assumed, (moved**2).sum(0), damping)
            if needed > damping:
                raised[j] = needed
        anchors[j], gradients[j] = now, gradient
    return replace(state.with_anchors(anchors), gradients=gradients, raised=raised)


def newton_step(state: NewtonState) -> tuple[FloatArray, float]:
    """Return the step to the minimum of all the clients' quadratics and the ridge.

    With it comes the Newton decrement, an estimate of how far above its minimum the objective is.
    The decrement leaves the damping out, which makes steps safe but would understate any distance.
    """
    sketch, model, ridge = state.sketch, double(state.model), total_ridge(state)
    total = ridge * model + state.gradient
    represented = model.copy()  # what all parity together is multiplied by
    for anchor, damping, share in _weighted(state):
        total += damping * (model - anchor)
        represented += share * (model - anchor)
    total, represented = np.hsplit(sketch.to_basis(np.hstack([total, represented])), 2)
    slope = total + sketch.apply_hessian(represented) - state.moment
    everybody = float(state.task.held.sum()) / state.represented_points
    more = sum(
        client_damping(state, j) - client_share(state, j) * state.damping for j in state.raised
    )
    step = sketch.solve(slope, everybody, everybody * state.damping + more + ridge)
    least = max(ridge, 1e-9 * sketch.largest)
    decrement = float((slope * sketch.solve(slope, everybody, least)).sum()) / 2
    return sketch.from_basis(step), decrement


def _weighted(state: NewtonState) -> Iterator[tuple[FloatArray, float, float]]:
    """Yield every model that clients are anchored at, with Σ ρ_j and what stands in for parity."""
    together: dict[int, tuple[FloatArray, list[int]]] = {}
    for client, anchor in state.anchors.items():  # those who answered one round share its model
        together.setdefault(anchor.round, (anchor.model, []))[1].append(client)
    for model, clients in together.values():
        without = sum(client_share(state, j) for j in clients if j not in state.places)
        yield model, sum(client_damping(state, j) for j in clients), without
