"""Gradients and models in fewer bits: unbiased stochastic rounding, a scale for every tensor."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from codedfedl.arrays import Array, asarray_like, to_host
from codedfedl.errors import InputError

__all__ = ["MAX_BITS", "MIN_BITS", "MODEL_BITS", "Rounding"]

MIN_BITS, MAX_BITS = 2, 8
MODEL_BITS = 32
"""Bits of a number that is not rounded."""
SCALE = np.dtype("<f4")  # how a scale travels

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Rounding:
    """Numbers of b bits: whole multiples of s/L, −L to L, where s is a tensor's largest magnitude.

    L is 2^(b−1) − 1. A number between two multiples becomes the upper one with a probability such
    that it is right on average; its variance is at most (s/L)²/4.

    Parameters
    ----------
    bits
        b, from 2 to 8.
    sizes
        Numbers in each tensor of a message, one after another (`Learner.tensor_sizes`).
    """

    bits: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise InputError(
                f"bits is {self.bits}: messages are rounded to {MIN_BITS} to {MAX_BITS} bits, or "
                "sent with 32"
            )

    @property
    def levels(self) -> int:
        """L."""
        return (1 << (self.bits - 1)) - 1

    @property
    def stretch(self) -> float:
        """How many times as long rounding makes a message at most: no number moves by s/L."""
        return 1 + float(np.sqrt(max(self.sizes))) / self.levels

    @property
    def packed_bytes(self) -> int:
        """Bytes of a message: the scales, then the codes without gaps."""
        return SCALE.itemsize * len(self.sizes) + -(-sum(self.sizes) * self.bits // 8)

    @property
    def message_bits(self) -> int:
        """Bits of a message, for the clock."""
        return 8 * self.packed_bytes

    def rounded(self, array: Array, rng: np.random.Generator) -> Array:
        """Return what `unpack` makes of `pack`, in the array's shape and precision, where it is."""
        xp = array_namespace(array)
        codes, scales = self._codes(array, rng)
        parts = [
            codes[part] * (scale / self.levels)
            for part, scale in zip(self._parts(), scales, strict=True)
        ]
        return xp.reshape(xp.astype(xp.concat(parts), array.dtype), array.shape)

    def pack(self, array: Array, rng: np.random.Generator) -> Bytes:
        """Round an array and pack it, shape (packed_bytes,)."""
        codes, scales = self._codes(array, rng)
        shifted = (to_host(codes) + self.levels).astype(np.uint8)
        digits = np.unpackbits(shifted[:, None], axis=1)[:, 8 - self.bits :]
        head = np.array(scales, dtype=SCALE).view(np.uint8)
        return np.concatenate([head, np.packbits(digits)])

    def unpack(self, message: Bytes) -> npt.NDArray[np.float32]:
        """Return the numbers of a message, shape (n,); it may be anybody's."""
        if message.dtype != np.uint8 or message.shape != (self.packed_bytes,):
            raise InputError(
                f"a message holds {message.dtype} of shape {message.shape}, not "
                f"{self.packed_bytes} bytes: send it again, rounded to {self.bits} bits"
            )
        head = SCALE.itemsize * len(self.sizes)
        scales = message[:head].view(SCALE)
        if not (np.isfinite(scales) & (scales >= 0)).all():
            raise InputError("a message has a scale that is not a number of at least 0")
        digits = np.unpackbits(message[head:], count=sum(self.sizes) * self.bits)
        padded = np.zeros((sum(self.sizes), 8), dtype=np.uint8)
        padded[:, 8 - self.bits :] = digits.reshape(-1, self.bits)
        codes = np.packbits(padded, axis=1)[:, 0].astype(np.int16) - self.levels
        if (codes > self.levels).any():
            raise InputError(f"a message has a code above {self.levels}: it was not rounded so")
        steps = np.repeat(scales.astype(np.float64) / self.levels, self.sizes)
        return (codes * steps).astype(np.float32)

    def _codes(self, array: Array, rng: np.random.Generator) -> tuple[Array, list[float]]:
        """Return whole numbers from −L to L in float64, shape (n,), and the scales."""
        xp = array_namespace(array)
        numbers = xp.astype(xp.reshape(array, (-1,)), xp.float64)
        if len(numbers) != sum(self.sizes):
            raise InputError(f"a message of {sum(self.sizes)} numbers cannot hold {len(numbers)}")
        scales = [_scale(numbers[part]) for part in self._parts()]
        luck = asarray_like(rng.random(len(numbers)), numbers)
        parts = [
            xp.floor(numbers[part] * (self.levels / scale if scale else 0.0) + luck[part])
            for part, scale in zip(self._parts(), scales, strict=True)
        ]
        return xp.clip(xp.concat(parts), -self.levels, self.levels), scales

    def _parts(self) -> Iterator[slice]:
        start = 0
        for size in self.sizes:
            yield slice(start, start + size)
            start += size


def _scale(numbers: Array) -> float:
    """Return the largest magnitude, in float32 and not rounded down."""
    xp = array_namespace(numbers)
    largest = float(xp.max(xp.abs(numbers))) if len(numbers) else 0.0
    scale = np.float32(largest)
    if not np.isfinite(scale):
        raise InputError("a message is not finite: the training diverged; choose a smaller step")
    return float(scale if scale >= largest else np.nextafter(scale, np.float32(np.inf)))
