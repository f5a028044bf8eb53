"""What a node keeps of its answers to `coded-newton` on sums: the gradients that may be counted.

A node sends the change of its gradient since its last counted answer. It learns which answer that
was only from a later question, so it keeps every gradient that it sends until then.
"""

import io
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from codedfedl.core.changed import Anchor, Changed
from codedfedl.errors import InputError
from codedfedl.io.files import Files
from codedfedl.privacy.fixed_point import FixedPoint, Residues

__all__ = ["Answers"]


class Answers:
    """The gradients that a node has sent in one federation, by round, on its own disk."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def filled(self, work: Changed) -> Changed:
        """Return the work with the last counted answer filled in, given its round."""
        return replace(
            work, counted={k: self._answer(work, told) for k, told in work.counted.items()}
        )

    def keep(
        self,
        work: Changed,
        round_: int,
        points: int,
        model: npt.NDArray[np.float32],
        change: Residues,
    ) -> None:
        """Keep the gradient after a change, and drop all others but the last counted one."""
        content = io.BytesIO()
        np.savez(content, model=model, points=points, gradient=work.whole(change))
        self._files[str(round_)] = content.getvalue()
        needed = {str(round_), *(str(last.round) for last in work.counted.values())}
        for key in set(self._files) - needed:
            del self._files[key]

    def _answer(self, work: Changed, told: Anchor) -> Anchor:
        key = str(told.round)
        if key not in self._files:
            raise InputError(
                f"round {told.round + 1} is said to have counted an answer that this node does not "
                "have: its vault was lost; begin a new federation"
            )
        with np.load(io.BytesIO(self._files[key])) as kept:
            if int(kept["points"]) != told.points:
                raise InputError(
                    f"the answer of round {told.round + 1} was for {int(kept['points'])} points, "
                    f"and {told.points} are said to be counted"
                )
            gradient = FixedPoint(work.scale).decode(kept["gradient"])
            return replace(told, model=kept["model"].astype(np.float64), gradient=gradient)
