"""Random features of an image's patches: what a small part of it looks like, and where."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.errors import InputError
from codedfedl.learning.features.base import drawn_like, floating, hadamard
from codedfedl.learning.features.fourier import LEAST_WIDTH, check_settings

_PATCH, _POOL = 8, 6
NUMBERS_AT_ONCE = 1 << 19  # of all patches of some points: what stays in a core's cache
NUMBERS_AT_ONCE_ON_GPU = 1 << 26


@dataclass(frozen=True)
class Tiles:
    """How images are cut into patches; None leaves it to the image's size.

    Attributes
    ----------
    image : (height, width, channels)
        A point's numbers are its pixels row by row, and the channels of a pixel lie side by side.
        By default a point is a square of one channel.
    patch : pixels
        Side of a patch: 8, or half of the image's shorter side where that is less.
    stride : pixels
        From one patch to the next: a quarter of a patch.
    pool
        Averages are taken over a grid of so many cells a side: 6, or as many as there are patches.
    """

    image: tuple[int, int, int] | None = None
    patch: int | None = None
    stride: int | None = None
    pool: int | None = None

    def __post_init__(self) -> None:
        if self.image is not None:  # a list, where it comes out of JSON
            object.__setattr__(self, "image", tuple(self.image))
        for name in ("patch", "stride", "pool"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"features.{name} is {value}: must be at least 1")

    def on(self, inputs: int) -> "Tiling":
        """Return how points of so many numbers are cut."""
        height, width, channels = self._shape(inputs)
        shorter = min(height, width)
        patch = min(_PATCH, -(-shorter // 2)) if self.patch is None else self.patch
        if patch > shorter or patch * patch * channels < 2:
            raise InputError(
                f"features.patch is {patch} where images are {height}×{width} with {channels} "
                f"channels: a patch has at least 2 numbers, and at most {shorter} pixels a side"
            )
        stride = max(1, patch // 4) if self.stride is None else self.stride
        positions = tuple((side - patch) // stride + 1 for side in (height, width))
        cells = tuple(min(self.pool or _POOL, count) for count in positions)
        return Tiling((height, width, channels), patch, stride, positions, cells)

    def _shape(self, inputs: int) -> tuple[int, int, int]:
        if self.image is None:
            side = round(inputs**0.5)
            if side * side != inputs:
                raise InputError(
                    f"features.kind is 'patches', and points of {inputs} numbers are not square "
                    "images: give features.image = [height, width, channels], or choose features "
                    "that need no images, such as 'structured'"
                )
            return side, side, 1
        if len(self.image) != 3 or min(self.image) < 1 or np.prod(self.image) != inputs:
            raise InputError(
                f"features.image is {list(self.image)}, and points have {inputs} numbers: give "
                "[height, width, channels] whose product they are"
            )
        return self.image


@dataclass(frozen=True)
class Tiling:
    """How images of one size are cut, in full.

    Attributes
    ----------
    positions, cells : (down, across)
        How many patches there are, and how many cells of the grid over which they are averaged.
    """

    image: tuple[int, int, int]
    patch: int
    stride: int
    positions: tuple[int, ...]
    cells: tuple[int, ...]

    @property
    def patch_numbers(self) -> int:
        """How many numbers a patch has."""
        return self.patch * self.patch * self.image[2]

    @property
    def width(self) -> int:
        """To how many numbers a patch is padded: the next power of two, 64 at least."""
        return max(LEAST_WIDTH, 1 << (self.patch_numbers - 1).bit_length())

    @property
    def patch_count(self) -> int:
        """How many patches an image has."""
        return self.positions[0] * self.positions[1]

    @property
    def cell_count(self) -> int:
        """Over how many cells they are averaged."""
        return self.cells[0] * self.cells[1]

    def indices(self) -> IntArray:
        """Return which numbers of a point each patch has, shape (patches, numbers)."""
        pixels = np.arange(np.prod(self.image)).reshape(self.image)
        sides = (self.patch, self.patch)
        windows = np.lib.stride_tricks.sliding_window_view(pixels, sides, axis=(0, 1))
        chosen = windows[:: self.stride, :: self.stride]  # (down, across, channels, patch, patch)
        return chosen.transpose(0, 1, 3, 4, 2).reshape(self.patch_count, self.patch_numbers)

    def averages(self) -> FloatArray:
        """Return the matrix that averages patches over cells, shape (cells, patches)."""
        sides = []
        for axis, count in enumerate(self.positions):
            side = np.zeros((self.cells[axis], count))
            for cell, (a, b) in enumerate(self.edges(axis)):
                side[cell, a:b] = 1 / (b - a)
            sides.append(side)
        return np.asarray(np.kron(*sides), dtype=np.float64)

    def edges(self, axis: int) -> list[tuple[int, int]]:
        """Return where each cell of the grid begins and ends, in patches."""
        count, cells = self.positions[axis], self.cells[axis]
        bounds = [i * count // cells for i in range(cells + 1)]
        return list(pairwise(bounds))


@dataclass(frozen=True)
class Patches:
    """Random Fourier features of patches, averaged over the cells of a grid.

    Each filter is a frequency ω for patches: an image's feature in a cell of the grid is the mean
    of √(2/q)·(cos(⟨ω, x⟩ + δ) − cos δ) over the patches x in it, less their own mean, so that an
    even patch gives 0. Frequencies are orthogonal in blocks, H·S₂·H·S₁ with random signs S and the
    Hadamard matrix H, and of equal length. There are q = filters · cells features: as many filters
    as `n_components` has room for, and at least one.

    Parameters
    ----------
    sigma
        Width of the RBF kernel on whole images, as for the other maps. A patch with a share s of
        the numbers has √s times that width.
    tiles
        How images are cut.

    Notes
    -----
    What a client is charged, an addition or a cosine counting as a multiply-accumulate: for an
    image, its scale and two running sums, of which the mean of a patch takes four more; for a
    patch, n·log₂n for the first transform, which all filters share, and as much for every block of
    n filters, or (n − m) + m·log₂m where m = 2^k filters are enough; for a filter, the mean's
    share, the phase, the cosine and the sum over the cell; and at last the averages. It is computed
    as one product with all filters, which an array library does faster than the transforms.
    """

    n_components: int = 2000
    sigma: float = 5.0
    seed: int = 0
    tiles: Tiles = Tiles()

    largest_square: ClassVar[float] = 8.0  # q differences of two cosines, each at most 2·√(2/q)
    shift_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self.n_components, self.sigma)

    def filters(self, inputs: int) -> int:
        """Return how many filters there are."""
        return max(1, self.n_components // self.tiles.on(inputs).cell_count)

    def size(self, inputs: int) -> int:
        """Return q, the largest multiple of the cells that is at most `n_components`."""
        return self.filters(inputs) * self.tiles.on(inputs).cell_count

    def macs(self, inputs: int) -> int:
        """Return the operations of a point; see the notes above."""
        tiling, filters = self.tiles.on(inputs), self.filters(inputs)
        whole, rest = divmod(filters, tiling.width)
        transforms = (1 + whole) * _transform_macs(tiling.width, tiling.width)
        transforms += _transform_macs(tiling.width, rest) if rest else 0
        a_patch = 4 + transforms + 4 * filters
        return 3 * inputs + tiling.patch_count * a_patch + self.size(inputs)

    def frequencies(self, inputs: int) -> tuple[FloatArray, FloatArray]:
        """Draw ω, shape (numbers of a patch, filters), and δ, shape (filters,).

        A patch's mean is removed by ω: every column adds up to 0.
        """
        tiling, filters = self.tiles.on(inputs), self.filters(inputs)
        n, numbers = tiling.width, tiling.patch_numbers
        random = np.random.RandomState(self.seed)
        blocks = -(-filters // n)
        shared, signs = (random.choice([-1.0, 1.0], shape) for shape in ((n,), (blocks, n)))
        spread = hadamard(np.eye(numbers, n) * shared)
        mixed = hadamard(spread[:, None, :] * signs).reshape(numbers, -1)[:, :filters]
        width = self.sigma * (numbers / inputs) ** 0.5
        omega = mixed / (n**0.5 * width)  # both transforms as rotations, of frequencies √n/width
        return omega - omega.mean(axis=0), random.uniform(0, 2 * np.pi, filters)

    def transform(self, points: Array) -> Array:
        """Return the averages of all filters in the first cell, then in the next."""
        points = floating(points)
        xp, inputs = array_namespace(points), points.shape[1]
        tiling, filters = self.tiles.on(inputs), self.filters(inputs)
        indices = asarray_like(tiling.indices().ravel(), points)
        drawn = self.frequencies(inputs)
        omega, delta = (drawn_like(array, points) for array in drawn)
        at_rest = xp.cos(delta)
        scale = (2.0 / self.size(inputs)) ** 0.5
        shape = (points.shape[0], self.size(inputs))
        features = xp.empty(shape, dtype=points.dtype, device=device(points))
        step = self._points_at_once(tiling, filters, is_numpy_array(points))
        for start in range(0, points.shape[0], step):
            rows = points[start : start + step]
            patches = xp.reshape(xp.take(rows, indices, axis=1), (-1, tiling.patch_numbers))
            waves = xp.cos(patches @ omega + delta) - at_rest
            pooled = averaged_over_cells(
                xp.reshape(waves, (-1, *tiling.positions, filters)), tiling
            )
            features[start : start + step] = scale * xp.reshape(pooled, (rows.shape[0], -1))
        return features

    @staticmethod
    def _points_at_once(tiling: Tiling, filters: int, on_host: bool) -> int:
        """Return how many points are cut at a time, so that memory stays bounded."""
        most = NUMBERS_AT_ONCE if on_host else NUMBERS_AT_ONCE_ON_GPU
        return max(1, most // (tiling.patch_count * max(filters, tiling.patch_numbers)))


def _transform_macs(n: int, wanted: int) -> int:
    """Return the additions of a Hadamard transform of n numbers, of which the first are wanted.

    The first m = 2^k are the transform of the sums of n/m parts.
    """
    m = 1 << (wanted - 1).bit_length()
    return (n - m) + m * (m.bit_length() - 1)


def averaged_over_cells(waves: Array, tiling: Tiling) -> Array:
    """Average over the patches of every cell: (n, down, across, filters) → (n, cells, filters)."""
    xp: Any = array_namespace(waves)
    down = xp.stack([xp.mean(waves[:, a:b], axis=1) for a, b in tiling.edges(0)], axis=1)
    return xp.stack([xp.mean(down[:, :, a:b], axis=2) for a, b in tiling.edges(1)], axis=2)
