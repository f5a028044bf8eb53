"""Q·T·Qᵀ against the matrix that it stands for."""

from typing import Any

import numpy as np
import pytest

from codedfedl.arrays import FloatArray, to_device, to_host
from codedfedl.learning.tridiagonal import Tridiagonal

SIZES = [1, 5, 32, 33, 64, 65, 96, 97, 300, 700]  # up to two strips, three groups of reflections


def _matrix(size: int, rank: int | None = None) -> FloatArray:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((2 * size if rank is None else rank, size))
    x *= 3 / np.sqrt(np.arange(1, size + 1))
    return x.T @ x


def _whole(form: Tridiagonal) -> FloatArray:
    """T as a matrix, put together from its blocks."""
    found = np.zeros((form.size, form.size))
    for place, block in zip(form.places, form.diagonal, strict=True):
        found[place, place] = block
    for k, block in enumerate(form.below):
        found[form.places[k + 1], form.places[k]] = block
        found[form.places[k], form.places[k + 1]] = block.T
    return found


def _same(found: Any, expected: Any, condition: float = 1.0) -> None:
    """To rounding: some thousand times the last digit of the largest number."""
    limit = 1e-12 * condition * np.abs(expected).max(initial=1e-300)
    assert np.abs(found - expected).max() <= limit


@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_matrix(size: int) -> None:
    matrix, eye = _matrix(size), np.eye(size)
    form = Tridiagonal.of(matrix.copy())
    assert form.size == size
    q = form.turned_back(eye)
    _same(q.T @ q, eye)
    _same(form.turned(eye), q.T)
    _same(q @ _whole(form) @ q.T, matrix)
    some = eye[:, ::7]
    _same(form.times(some), _whole(form) @ some)
    assert form.largest == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-10)


def test_a_block_has_at_most_32_rows() -> None:
    """Otherwise factors would not take linear time."""
    form = Tridiagonal.of(_matrix(300))
    assert {len(block) for block in form.diagonal[:-1]} == {32}
    assert len(form.diagonal[-1]) == 300 % 32
    assert len(form.below) == len(form.diagonal) - 1


@pytest.mark.parametrize("rank", [0, 1, 40, 150])
def test_matrices_without_full_rank(rank: int) -> None:
    matrix = _matrix(200, rank)
    form = Tridiagonal.of(matrix.copy())
    q = form.turned_back(np.eye(200))
    _same(q.T @ q, np.eye(200))
    _same(q @ _whole(form) @ q.T, matrix)
    top = np.linalg.eigvalsh(matrix)[-1] if rank else 0.0
    assert form.largest == pytest.approx(top, rel=1e-10, abs=0)
    with pytest.raises(np.linalg.LinAlgError):
        form.factor(1.0, 0.0)
    expected = np.linalg.inv(matrix + 0.1 * np.eye(200))
    factor = form.factor(1.0, 0.1)
    _same(q @ factor.solve(q.T), expected, condition=1e4)


@pytest.mark.parametrize("size", SIZES)
def test_factors_divide(size: int) -> None:
    matrix, eye = _matrix(size), np.eye(size)
    form = Tridiagonal.of(matrix.copy())
    q, factor = form.turned_back(eye), form.factor(1.7, 0.3)
    expected = np.linalg.inv(1.7 * matrix + 0.3 * eye)
    _same(q @ factor.solve(q.T), expected, condition=1e3)
    half = factor.half(q.T)
    _same(half.T @ half, expected, condition=1e3)
    assert factor.inverse_trace() == pytest.approx(np.trace(expected), rel=1e-10)


@pytest.mark.extras
def test_pytorch_gives_the_same() -> None:
    pytest.importorskip("torch")
    matrix = _matrix(300)
    form, there = Tridiagonal.of(matrix.copy()), Tridiagonal.of(to_device(matrix, "torch"))
    columns = np.random.default_rng(0).standard_normal((300, 3))
    on_device = to_device(columns, "torch")
    solved = form.turned_back(form.factor(1.0, 0.2).solve(form.turned(columns)))
    turned = there.turned(on_device)
    found = to_host(there.turned_back(there.factor(1.0, 0.2).solve(turned)))
    _same(found, solved, condition=1e4)
