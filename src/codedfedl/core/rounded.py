"""Work whose answers are rounded to a few bits before they are sent."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, to_host
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
    client
        Whose: it rounds by chances that nobody need hide, so that a replay rounds alike.
    """

    bits: int
    sizes: tuple[int, ...]
    draw: int
    client: int = 0

    kind: ClassVar[str] = "rounded"

    def for_client(self, j: int) -> Self:
        """Return client j's part."""
        return replace(super().for_client(j), client=j)

    @property
    def rounding(self) -> Rounding:
        """How numbers are rounded."""
        return Rounding(self.bits, tuple(self.sizes))

    def most_weight(self, client: int, points: int, held: float) -> float | None:
        """Return that of the wrapped work, times how much longer rounding may make a gradient."""
        weight = super().most_weight(client, points, held)
        return None if weight is None else self.rounding.stretch * weight

    def answer(self, client: Client, load: int, model: Array) -> Answer:
        """Return the wrapped work's answer, rounded."""
        return self.rounded(self.work.answer(client, load, model), client, model)

    def rounded(self, answer: Answer, client: Client, model: Array) -> Answer:
        """Return an answer after its arrays were sent; one that is not finite is as it was."""
        rng = client.code_stream(_ROUNDINGS, self.draw)
        arrays = dict(answer.arrays)
        for name, array in self._large(arrays, model):
            xp = array_namespace(array)
            if bool(xp.all(xp.isfinite(array))):
                centre = self._centre(answer.points, model)
                arrays[name] = centre + self.rounding.rounded(array - centre, rng)
        return Answer(answer.points, arrays, answer.mixed)

    def timed(self, client: Client, load: int, model: Array, clock: Callable[[], float]) -> Answer:
        """Return the wrapped work's answer as bytes."""
        answer = self.work.timed(client, load, model, clock)
        rng, arrays = np.random.default_rng((self.draw, self.client)), dict(answer.arrays)
        for name, array in self._large(arrays, model):
            arrays[name] = self.rounding.pack(array - self._centre(answer.points, model), rng)
        return Answer(answer.points, arrays, answer.mixed)

    def unpacked(
        self, arrays: Mapping[str, Array], points: int, model: Array
    ) -> Mapping[str, Array]:
        """Return the numbers in the bytes of an answer, on the host."""
        centre, known = self._centre(points, to_host(model)), dict(arrays)
        for name, array in arrays.items():
            if array.dtype == np.uint8 or array.shape == model.shape:
                known[name] = centre + self.rounding.unpack(array).reshape(model.shape)
        return known

    def _centre(self, points: int, model: Array) -> Array:
        return points * model if self.moves else 0 * model

    @staticmethod
    def _large(arrays: Mapping[str, Array], model: Array) -> Iterator[tuple[str, Array]]:
        """Yield the arrays that are rounded: those of a model's shape."""
        yield from [(name, array) for name, array in arrays.items() if array.shape == model.shape]
