"""Work whose answers are rounded to a few bits before they are sent."""

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from codedfedl.arrays import Array
from codedfedl.core.work import Answer, Client, Wrapping
from codedfedl.learning.messages import Rounding

__all__ = ["Rounded"]

_ROUNDINGS = 3 << 21  # Names the streams of roundings, beside those of codes and drawn points.


@dataclass(frozen=True, eq=False)
class Rounded(Wrapping):
    """Gradients or models of so many bits a number (`learning.messages`).

    What is rounded of a model is its difference from the one that was asked about.

    Parameters
    ----------
    sizes
        Of a model's tensors.
    draw
        Which rounding it is, where it can be repeated.
    """

    bits: int
    sizes: tuple[int, ...]
    draw: int

    kind: ClassVar[str] = "rounded"

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the wrapped work's answer, rounded."""
        return self.rounded(self.work.answer(client, load, model), client, model)

    def rounded(self, answer: Answer, client: Client, model: Array) -> Answer:
        """Return an answer after its arrays were sent; one that is not finite is as it was."""
        rounding = Rounding(self.bits, tuple(self.sizes))
        rng = client.code_stream(_ROUNDINGS, self.draw)
        arrays = dict(answer.arrays)
        for name, array in arrays.items():
            xp = array_namespace(array)
            if array.shape == model.shape and bool(xp.all(xp.isfinite(array))):
                centre = answer.points * model if self.moves else 0 * model
                arrays[name] = centre + rounding.rounded(array - centre, rng)
        return Answer(answer.points, arrays, answer.mixed)
