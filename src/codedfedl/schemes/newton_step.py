"""The first model of `coded-newton`, the anchors of its clients, and the step from them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from codedfedl.arrays import Array, FloatArray, to_host
from codedfedl.core.masked import Anchor
from codedfedl.core.protocol import Reply
from codedfedl.errors import InputError
from codedfedl.learning.metrics import telling_excess
from codedfedl.learning.sketch import Sketch
from codedfedl.schemes.newton_state import NewtonState, total_ridge

__all__ = [
    "anchored",
    "assumed_curvature",
    "client_damping",
    "client_share",
    "double",
    "needed_damping",
    "newton_step",
    "started",
]

_TOO_CURVED = 1.8  # times what was assumed; at 2 a step no longer helps


def started(state: NewtonState) -> NewtonState:
    """Solve on parity, and plan the rounds again for what it explains."""
    sketch, ridge, settings = state.sketch, total_ridge(state), state.settings
    start = sketch.best_ridge(ridge)
    loss = sketch.leave_one_out(start) / (2 * state.represented_points)
    theta = sketch.effective_dimension(ridge) / sketch.rows
    excess = sketch.excess(start, ridge)
    fewest, most = settings.rounds or 0, state.task.rounds
    if settings.rounds is not None:
        most = fewest
    plan = replace(state.plan, wanted=_wanted(settings.excess, sketch, ridge))
    plan = plan.after_start(excess, theta, fewest, most)
    state = state.with_model(sketch.ridge_regression(start))
    state = replace(state, plan=plan, last_round=most, start_loss=loss, start_excess=excess)
    return replace(state, start_ridge=start - ridge, spent=plan.setup_deadline).judged(0.0)


def _wanted(excess: float | None, sketch: Sketch, ridge: float) -> float:
    """Return the wanted excess over the optimum, now that parity shows what is explained."""
    smallest = max(sketch.smallest_objective(ridge), np.finfo(float).tiny)
    explained = max(float((sketch.targets**2).sum()) / 2 - smallest, 0.0)
    return telling_excess(excess, explained / smallest)


def double(array: Array) -> FloatArray:
    """Return an array on the host, in double precision."""
    return to_host(array).astype(np.float64)


def client_share(state: NewtonState, client: int) -> float:
    """Return for how many points a client counts, over those of the clients with parity."""
    return float(state.weights[client] * state.task.held[client]) / state.represented_points


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
    state = state.with_newcomers({reply.client: reply.points for reply in replies})
    anchors, gradients, raised = {}, dict(state.gradients), dict(state.raised)
    checked = set(state.checked)
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
        checked.discard(j)
        if damped and before is not None and before.points == now.points:
            checked.add(j)
            moved, damping = now.model - before.model, client_damping(state, j)
            true = state.weights[j] * (moved * (double(gradient) - gradients[j])).sum(0)
            along = state.in_basis[now.round] - state.in_basis[before.round]
            assumed = assumed_curvature(state, j, along)
            needed = needed_damping(true, assumed, (moved**2).sum(0), damping)
            if needed > damping:
                raised[j] = needed
        anchors[j], gradients[j] = now, gradient
    state = replace(state, checked=frozenset(checked), raised=raised)
    return replace(state.with_anchors(anchors), gradients=gradients)


def newton_step(state: NewtonState) -> tuple[FloatArray, float]:
    """Return the step to the minimum of all the clients' quadratics and the ridge.

    Parity is fitted no more closely than at the start, as far as no answers have replaced it.

    With it comes the Newton decrement, an estimate of how far above its minimum the objective is.
    The decrement leaves the damping out, which makes steps safe but would understate any distance.
    """
    sketch, model = state.sketch, double(state.model)
    ridge = total_ridge(state) + state.parity_ridge
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
