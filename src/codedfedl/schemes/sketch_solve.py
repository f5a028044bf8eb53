"""`sketch-solve`: ridge regression at the server on the clients' own parity, without rounds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.core.client import BlockParity
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import (
    EACH,
    AnyLimits,
    Ask,
    Description,
    Inbox,
    Info,
    Reply,
    Rng,
    Scheme,
    State,
    Task,
)
from codedfedl.core.record import SETUP
from codedfedl.core.waiting import Everyone, Until, Wait
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import fleet_of
from codedfedl.learning.codes import LEAST_MIXING, Code, warn_of_thin_rows
from codedfedl.learning.least_squares import ParityRows
from codedfedl.learning.sketch import Sketch
from codedfedl.schemes.by_class import ByClass, ask_counts

__all__ = [
    "Block",
    "SketchSolve",
    "block_facts",
    "blocks_of",
    "by_class_of",
    "check_mixing",
    "joined",
    "stacked",
]


@dataclass(frozen=True, eq=False)
class Block:
    """The parity of one client, and the number of its points in it."""

    parity: ParityRows
    points: int

    def joined(self, more: "Block") -> "Block":
        """Return the parity of these points and of more.

        Each of the two stands for all points of the client, and now for its share of them.
        """
        points = self.points + more.points
        shares = [(block.parity, (block.points / points) ** 0.5) for block in (self, more)]
        features, targets = _stacked([_scaled(part, share) for part, share in shares])
        return Block(ParityRows(features, targets), points)


def _scaled(parity: ParityRows, factor: float) -> ParityRows:
    """Return parity times a factor, in float32: 16 bits would round it."""
    xp = array_namespace(parity.features)
    return ParityRows(
        factor * xp.astype(parity.features, xp.float32),
        factor * xp.astype(parity.targets, xp.float32),
    )


def _stacked(parts: Sequence[ParityRows]) -> tuple[Array, Array]:
    xp = array_namespace(parts[0].features)
    return xp.concat([part.features for part in parts]), xp.concat([p.targets for p in parts])


def blocks_of(replies: Iterable[Reply], task: Task) -> dict[int, Block]:
    """Return the parity among some replies, by client and in their order."""
    blocks = {}
    for reply in sorted(replies, key=lambda reply: reply.client):
        if reply.round == SETUP and reply.points and "features0" in reply.arrays:
            parity = ParityRows(reply.arrays["features0"], reply.arrays["targets0"])
            _check_shapes(reply.client, parity, task)
            blocks[reply.client] = Block(parity, reply.points)
    return blocks


def _check_shapes(client: int, parity: ParityRows, task: Task) -> None:
    q, c = task.workload.features, task.workload.labels
    shapes = (tuple(parity.features.shape), tuple(parity.targets.shape))
    rows = shapes[0][0] if shapes[0] else 0
    if rows < 1 or shapes != ((rows, q), (rows, c)):
        raise InputError(
            f"the parity of client {client} has the shapes {shapes[0]} and {shapes[1]}: "
            f"must be (u, {q}) and (u, {c}) with u from 1 on"
        )


def joined(earlier: Mapping[int, Block], blocks: Mapping[int, Block]) -> dict[int, Block]:
    """Return blocks by client, each together with what the client sent earlier."""
    return {
        client: earlier[client].joined(block) if client in earlier else block
        for client, block in blocks.items()
    }


def block_facts(blocks: Mapping[int, Block], task: Task, code: Code) -> dict[str, float]:
    """Return facts about the amount of parity, and the points that it represents."""
    sizes = [(block.points, block.parity.features.shape[0]) for block in blocks.values()]
    return {
        "parity_rows": float(sum(rows for _, rows in sizes)),
        "points_per_parity_row": min(
            (code.points_per_row(*size) for size in sizes), default=np.nan
        ),
        "embedded_points": float(sum(points for points, _ in sizes)),
        "unrepresented_points": float(task.held.sum() - task.held[list(blocks)].sum()),
    }


def check_mixing(scheme: str, mixing: int, bits: int) -> None:
    """Refuse rows of no points."""
    if bits not in (16, 32):
        raise InputError(f"{scheme}.bits is {bits}: must be 16 or 32")
    if not isinstance(mixing, int) or mixing < 1:
        raise InputError(f"{scheme}.mixing is {mixing}: must be a whole number from 1 on")


def stacked(blocks: Mapping[int, Block], weights: FloatArray) -> tuple[Array, Array]:
    """Stack the clients' parity where it is, in the order of the mapping.

    Rows stand for all points of their client, times its weight.
    """
    if not blocks:
        raise InputError("no client sent parity by the deadline: give the set-up more time")
    return _stacked(
        [_scaled(block.parity, float(weights[j]) ** 0.5) for j, block in blocks.items()]
    )


def by_class_of(
    by_class: ByClass | None, blocks: Mapping[int, Block], task: Task, embedded: IntArray
) -> tuple[ByClass | None, FloatArray]:
    """Return how far clients differ, as parity shows, and their weights by class, shape (n,).

    `embedded` are points in their answers, where there are more than in parity, shape (n,).
    """
    if by_class is None:
        return None, np.ones(task.clients)
    points = embedded.copy()
    for client, block in blocks.items():
        points[client] = max(points[client], block.points)
    by_class = by_class.after_parity({j: (b.parity, b.points) for j, b in blocks.items()}, task)
    return by_class, by_class.weights(points)


@dataclass(frozen=True, eq=False)
class SketchState(State):
    """How long it waits, whether clients are real, label counts, each client's parity if sent."""

    wait: Wait = field(default_factory=Everyone)
    federated: bool = False
    by_class: ByClass | None = None
    blocks: Mapping[int, Block] = field(default_factory=dict)


@dataclass(frozen=True)
class SketchSolve(Scheme):
    """Sketch-and-solve on block parity.

    Parameters
    ----------
    mixing
        Points mixed into every parity row.
    nonzeros
        Rows that each point goes into; larger values give more rows.
    bits
        Bits per parity value, 16 or 32.
    setup_deadline : seconds
        When the set-up ends, and training with it; None waits for all clients.
    """

    mixing: int = LEAST_MIXING
    nonzeros: int = 1
    bits: int = 16
    setup_deadline: float | None = None

    info: ClassVar[Info] = Info(
        "sketch-solve",
        frozenset({Disclosure.MIXED, Disclosure.COUNTS}),
        solver="exact",
        solves=True,
        quadratic=True,
        descends=False,
    )

    @property
    def code(self) -> Code:
        """How each client mixes its points."""
        return Code("dealt", self.nonzeros)

    def __post_init__(self) -> None:
        check_mixing(self.info.name, self.mixing, self.bits)
        _ = self.code  # raises InputError for an unknown code
        if self.setup_deadline is not None and not 0 < self.setup_deadline < np.inf:
            raise InputError(
                f"sketch-solve.setup_deadline is {self.setup_deadline:g}: must be finite and above "
                "0 seconds"
            )

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> SketchState:
        """Refuse rows with more points than any client has, and warn of rows of few."""
        if limits is None:  # a simulation, which plays how fast clients embed
            name = f"{self.info.name}: embedding until a deadline"
            fleet_of(fleet, task.points[0], name)
        warn_of_thin_rows(self.info.name, self.mixing)
        if not (task.held >= self.mixing).any():
            raise InputError(f"mixing is {self.mixing}: every client has fewer points; lower it")
        seconds = self.setup_deadline or (None if limits is None else limits.setup_deadline)
        wait: Wait = Everyone() if seconds is None else Until(seconds)
        return SketchState(task, model, wait=wait, federated=limits is not None)

    def ask(self, state: SketchState) -> Ask | None:
        """Ask for counts, then for parity, once."""
        if state.blocks:
            return None
        if state.by_class is None:
            return ask_counts(state.wait.deadline / 2)
        work = BlockParity(self.code, self.mixing, self.bits)
        return Ask(work, state.wait, combine=EACH, setup=True)

    def receive(self, state: SketchState, inbox: Inbox) -> SketchState:
        """Solve, with the ridge that leaves the smallest leave-one-out loss."""
        if state.by_class is None:
            by_class = ByClass.of(inbox.replies, state.task, federated=state.federated)
            return replace(state, by_class=by_class)
        blocks = blocks_of(inbox.replies, state.task)
        nothing = np.zeros(state.task.clients, np.int64)
        _, weights = by_class_of(state.by_class, blocks, state.task, nothing)
        sketch = Sketch.of(*stacked(blocks, weights))
        ridge = sketch.best_ridge(state.task.ridge * float(state.task.held.sum()))
        model = asarray_like(sketch.ridge_regression(ridge).astype(np.float32), state.model)
        return replace(state, model=model, blocks=blocks)

    def describe(self, state: SketchState) -> Description:
        """Return the facts about the parity."""
        return Description(facts=block_facts(state.blocks, state.task, self.code))
