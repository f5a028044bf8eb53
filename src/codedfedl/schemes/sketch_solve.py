"""`sketch-solve`: ridge regression at the server on the clients' own parity, without rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codedfedl.arrays import Array, beside, to_host
from codedfedl.errors import InputError
from codedfedl.fleet.devices import Fleet
from codedfedl.learning.codes import LEAST_MIXING, Code, warn_of_thin_rows
from codedfedl.learning.sketching import Sketch
from codedfedl.schemes.base import (
    Ask,
    AskBlockParity,
    Block,
    Everyone,
    Inbox,
    State,
    Task,
    Until,
    refuse_absent,
)

__all__ = ["SketchSolve", "check_mixing", "sketch_of"]


def check_mixing(scheme: str, mixing: int) -> None:
    """Refuse rows of no points, and warn of rows of few."""
    if not isinstance(mixing, int) or mixing < 1:
        raise InputError(f"{scheme}.mixing is {mixing}: must be a whole number from 1 on")
    warn_of_thin_rows(scheme, mixing)


def sketch_of(blocks: Mapping[int, Block], task: Task) -> Sketch:
    """Stack the clients' parity, in their order."""
    q, c = task.workload.features, task.workload.labels
    for client, block in blocks.items():
        found = (tuple(block.parity.features.shape), tuple(block.parity.targets.shape))
        rows = found[0][0] if found[0] else 0
        if rows < 1 or found != ((rows, q), (rows, c)):
            raise InputError(
                f"the parity of client {client} has the shapes {found[0]} and {found[1]}: "
                f"must be (u, {q}) and (u, {c}) with u from 1 on"
            )
    parts = [blocks[client].parity for client in sorted(blocks)]
    if not parts:
        raise InputError("no client sent parity by the deadline: give the set-up more time")
    features = np.concatenate([to_host(part.features) for part in parts])
    return Sketch.of(features, np.concatenate([to_host(part.targets) for part in parts]))


@dataclass(frozen=True)
class SketchSolve:
    """Sketch-and-solve on block parity.

    Parameters
    ----------
    mixing
        Points behind every parity row.
    nonzeros
        Rows that a point goes into.
    deadline : seconds
        When the set-up ends; None waits for all.
    """

    mixing: int = LEAST_MIXING
    nonzeros: int = 1
    deadline: float | None = None

    name: ClassVar[str] = "sketch-solve"

    @property
    def code(self) -> Code:
        """How each client mixes its points."""
        return Code("balanced", self.nonzeros)

    def __post_init__(self) -> None:
        check_mixing(self.name, self.mixing)
        _ = self.code  # which refuses what is no code
        if self.deadline is not None and not 0 < self.deadline < np.inf:
            raise InputError(
                f"sketch-solve.deadline is {self.deadline:g}: must be finite and above 0 seconds"
            )

    def start(self, task: Task, fleet: Fleet, model: Array) -> State:
        """Refuse fleets for which waiting would never end."""
        if self.deadline is None:
            refuse_absent(fleet, "sketch-solve waits for all")
        if not (task.held >= self.mixing).any():
            raise InputError(f"mixing is {self.mixing}: every client has fewer points; lower it")
        return State(task, model)

    def ask(self, state: State) -> Ask | None:
        """Ask once."""
        wait = Everyone() if self.deadline is None else Until(self.deadline)
        return AskBlockParity(self.code, self.mixing, wait) if state.round == 0 else None

    def receive(self, state: State, inbox: Inbox) -> State:
        """Solve, with the ridge that leaves the smallest leave-one-out loss."""
        sketch = sketch_of(inbox.blocks, state.task)
        ridge = sketch.best_ridge(state.task.ridge * float(state.task.held.sum()))
        model = beside(sketch.solve(ridge).astype(np.float32), state.model)
        return replace(state, model=model, round=1)
