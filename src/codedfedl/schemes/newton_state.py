"""What `coded-newton` remembers of every client, and the step that it takes from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from codedfedl._types import FloatArray
from codedfedl.arrays import Array, to_host
from codedfedl.core.changed import Anchor
from codedfedl.core.client import BlockParity
from codedfedl.core.protocol import State
from codedfedl.learning.sketching import Sketch
from codedfedl.planning.cold_start import ColdStart, sampling_excess
from codedfedl.schemes.sketch_solve import Block

__all__ = [
    "NewtonState",
    "assumed_curvature",
    "client_damping",
    "client_share",
    "double",
    "needed_damping",
    "newton_step",
    "total_ridge",
]

_TOO_CURVED = 1.8  # times what was assumed; at 2 a step no longer helps


@dataclass(frozen=True, eq=False)
class NewtonState(State):
    """What the server remembers.

    Attributes
    ----------
    parity
        What every client sends once.
    plan
        Deadlines and rounds, with what they were expected to bring.
    first_plan
        What was planned before any parity was there.
    last_round : int
        How many rounds are played: the plan's, unless more are asked for.
    blocks, sketch
        The parity of each client that sent some, and of all together.
    waiting
        Late parity that is not yet in them; its clients count as clients without parity.
    damping : float
        ρ, the damping of all clients together; each has a share by its points.
    raised
        ρ_j of each client whose answers showed that its share is too little.
    anchors
        What the last answer of each client is for that was heard.
    gradients
        The last answers themselves.
    start_loss : float
        The start's squared error a point on all points, halved, as predicted from parity.
    start_excess : float
        The relative excess of its objective, predicted likewise.
    estimate : float
        The relative excess now, by what the answers say; ∞ where nobody asks.
    """

    parity: BlockParity | None = None
    plan: ColdStart | None = None
    first_plan: ColdStart | None = None
    last_round: int = 0
    blocks: Mapping[int, Block] = field(default_factory=dict)
    sketch: Sketch | None = None
    waiting: Mapping[int, Block] = field(default_factory=dict)
    damping: float = 0.0
    raised: Mapping[int, float] = field(default_factory=dict)
    anchors: Mapping[int, Anchor] = field(default_factory=dict)
    gradients: Mapping[int, FloatArray] = field(default_factory=dict)
    start_loss: float = np.nan
    start_excess: float = np.nan
    estimate: float = np.inf

    @property
    def gradient(self) -> FloatArray:
        """Σ g_j(a_j) over the clients that were heard: all that a step needs of their answers."""
        return np.asarray(sum(self.gradients.values(), start=np.zeros(self.task.model_shape)))

    @property
    def good_enough(self) -> bool:
        """Whether the answers say that the wanted excess is reached."""
        assert self.plan is not None
        return self.estimate <= self.plan.wanted

    def judged(self, decrement: float) -> "NewtonState":
        """Return the state with an estimate of its excess.

        Whoever was heard stands for its points with those of its last answer, which costs what
        sampling costs; whoever was not is as good as the start. The decrement says the rest.
        """
        assert self.sketch is not None
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

    A client without parity is taken to curve as all others do.
    """
    if client in state.blocks:
        rows, share = to_host(state.blocks[client].parity.features).astype(np.float64), 1.0
    else:
        assert state.sketch is not None
        rows, share = state.sketch.features, client_share(state, client)
    return np.asarray(share * ((rows @ moved) ** 2).sum(0))


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


def newton_step(state: NewtonState) -> tuple[FloatArray, float]:
    """Return the step to the minimum of all the clients' quadratics and the ridge.

    With it comes the Newton decrement, an estimate of how far above its minimum the objective is.
    It leaves the damping out, which makes steps safe and would make any distance look small.
    """
    sketch, model = state.sketch, double(state.model)
    assert sketch is not None
    total = total_ridge(state) * model + state.gradient
    residuals = sketch.features @ model - sketch.targets  # of clients that were never heard
    apart = np.zeros_like(model)  # what moved for clients without parity
    places = _places(state.blocks)
    for client, anchor in state.anchors.items():
        moved = model - anchor.model
        share = client_share(state, client)
        total = total + client_damping(state, client) * moved
        if client in places:
            rows = places[client]
            residuals[rows] = sketch.features[rows] @ moved
        else:
            apart += share * moved
    residuals += sketch.features @ apart
    total = total + sketch.features.T @ residuals
    everybody = float(state.task.held.sum()) / state.represented_points
    more = sum(
        client_damping(state, j) - client_share(state, j) * state.damping for j in state.raised
    )
    damping = everybody * state.damping + more + total_ridge(state)
    step = sketch.divide(total, everybody, damping)
    whole = sketch.divide(total, everybody, max(total_ridge(state), 1e-9 * sketch.values[-1]))
    return step, float((whole * total).sum()) / 2


def _places(blocks: Mapping[int, Block]) -> dict[int, slice]:
    """Return where each client's rows are in the sketch."""
    clients = sorted(blocks)
    ends = np.cumsum([blocks[j].parity.features.shape[0] for j in clients]).tolist()
    return {j: slice(a, b) for j, a, b in zip(clients, [0, *ends], ends, strict=False)}
