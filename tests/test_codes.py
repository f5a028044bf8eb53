import numpy as np
import pytest
from scipy.stats import norm

from codedfedl import InputError
from codedfedl.learning import codes
from codedfedl.learning.codes import CODES, Code


def _matrix(code: Code, points: int, rows: int, seed: int) -> np.ndarray:
    """G itself: what the code makes of unit vectors."""
    unit = np.eye(points, dtype=np.float32)
    (matrix,) = code.mix((unit,), np.ones(points), rows, np.random.default_rng(seed))
    return np.asarray(matrix)


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("nonzeros", [1, 3])
def test_squares_to_the_identity_in_expectation(name: str, nonzeros: int) -> None:
    """E[GᵀG] = I, entry by entry; false-alarm probability below 1e-4 by a union bound."""
    draws, points, rows = 2000, 12, 5
    squares = np.array(
        [(g := _matrix(Code(name, nonzeros), points, rows, s)).T @ g for s in range(draws)]
    )
    error = squares.std(0) / np.sqrt(draws) + 1e-6
    limit = norm.isf(1e-4 / (2 * points**2))
    assert (np.abs(squares.mean(0) - np.eye(points)) < limit * error).all()


@pytest.mark.parametrize("name", CODES)
def test_the_matrix_is_what_mixes(name: str) -> None:
    """With so many points that columns are drawn in several parts."""
    code, points, rows = Code(name, 3), 5000, 300
    matrix = code.matrix(points, rows, np.random.default_rng(0))
    vector = np.random.default_rng(1).standard_normal((points, 1))
    (mixed,) = code.mix((vector,), np.ones(points), rows, np.random.default_rng(0))
    np.testing.assert_allclose(matrix @ vector, mixed, atol=1e-5)


@pytest.mark.parametrize("name", CODES)
def test_weights_and_several_matrices_share_one_code(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y, weights = rng.random((40, 6)), rng.random((40, 2)), rng.random(40)
    x, y = x.astype(np.float32), y.astype(np.float32)
    mixed = Code(name, 2).mix((x, y), weights, 4, np.random.default_rng(3))
    g = _matrix(Code(name, 2), 40, 4, 3) * weights
    np.testing.assert_allclose(mixed[0], g @ x, atol=1e-5)
    np.testing.assert_allclose(mixed[1], g @ y, atol=1e-5)


@pytest.mark.parametrize(("points", "rows", "nonzeros"), [(100, 10, 1), (107, 10, 1), (95, 9, 4)])
def test_dealt_rows_mix_as_many_points_as_promised(points: int, rows: int, nonzeros: int) -> None:
    code = Code("dealt", nonzeros)
    for seed in range(50):
        g = _matrix(code, points, rows, seed)
        mixed = (g != 0).sum(1)
        assert mixed.min() >= code.points_per_row(points, rows) == nonzeros * (points // rows)
        assert mixed.max() - mixed.min() <= nonzeros
        assert ((g != 0).sum(0) == nonzeros).all()  # distinct rows: nothing cancels
        np.testing.assert_allclose(np.abs(g[g != 0]), 1 / np.sqrt(nonzeros), rtol=1e-5)


def test_sparse_columns_have_their_nonzeros_at_distinct_rows() -> None:
    g = _matrix(Code("sparse", 3), 50, 8, 0)
    assert ((g != 0).sum(0) == 3).all()
    assert Code("sparse", 3).points_per_row(50, 8) == 50 * 3 // 8
    assert ((_matrix(Code("sparse", 9), 50, 4, 0) != 0).sum(0) == 4).all()


def test_costs() -> None:
    assert Code("gaussian").operations(1200) == Code("sign").operations(1200) == 1200
    assert Code("sparse", 8).operations(1200) == Code("dealt", 8).operations(1200) == 8
    assert Code("gaussian").points_per_row(400, 1200) == 400


def test_bad_codes_are_refused() -> None:
    with pytest.raises(InputError, match="code 'gausian' is unknown.*gaussian"):
        Code("gausian")
    with pytest.raises(InputError, match="nonzeros is 0"):
        Code("sparse", 0)
    with pytest.raises(InputError, match="rows are 0"):
        _matrix(Code(), 5, 0, 0)
    with pytest.raises(InputError, match="mixes 5 points: features, targets and weights differ"):
        Code().mix((np.eye(5), np.eye(6)), np.ones(5), 2, np.random.default_rng(0))
    with pytest.raises(InputError, match="dealt code of 5 points has no 6 rows"):
        _matrix(Code("dealt"), 5, 6, 0)


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("held", [[40, 40, 40], [3000, 50, 1200]])
def test_clients_together_are_the_sum_of_each(name: str, held: list[int]) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((sum(held), k)).astype(np.float32) for k in (6, 2)]
    weights = [rng.uniform(0.2, 1.0, points) for points in held]
    code, rows = Code(name, 3), 30
    ends = np.cumsum(held)
    each = [
        code.mix([part[end - len(own) : end] for part in parts], own, rows, _stream(j))
        for j, (own, end) in enumerate(zip(weights, ends, strict=True))
    ]
    streams = [_stream(j) for j in range(len(held))]
    together = code.mix_all(parts, weights, rows, streams)
    for k, found in enumerate(together):
        np.testing.assert_allclose(found, sum(one[k] for one in each), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["gaussian", "sign"])
@pytest.mark.parametrize("entries", [64, 1 << 22], ids=["few rows at a time", "all rows"])
def test_points_of_weight_0_are_left_out_of_a_dense_code(
    name: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the points, all of a client's, and a client that has none."""
    rng, held, rows, code = np.random.default_rng(0), [30, 50, 0, 20, 41], 25, Code(name)
    parts = [rng.standard_normal((sum(held), k)) for k in (6, 2)]
    weights = [rng.uniform(0.2, 1.0, points) for points in held]
    weights[0][:], weights[4][:11] = 0.0, 0.0
    each = [code.matrix(points, rows, _stream(j)) for j, points in enumerate(held)]
    expected = np.hstack(each).astype(np.float64) * np.concatenate(weights)
    monkeypatch.setattr(codes, "ENTRIES_AT_ONCE", entries)
    monkeypatch.setattr(codes, "POINTS_AT_ONCE", 60)
    mixed = code.mix_all(parts, weights, rows, [_stream(j) for j in range(len(held))])
    for part, product in zip(parts, mixed, strict=True):
        np.testing.assert_allclose(product, expected @ part, rtol=0, atol=1e-5)
    (nothing,) = code.mix_all([parts[0][:30]], weights[:1], rows, [_stream(0)])
    np.testing.assert_array_equal(nothing, np.zeros((rows, 6)))


@pytest.mark.parametrize("name", ["gaussian", "sign"])
def test_a_dense_code_of_fewer_rows_is_the_beginning_of_one_with_more(name: str) -> None:
    code = Code(name)
    few, many = (code.matrix(7, rows, _stream(0)) * np.sqrt(rows) for rows in (5, 9))
    np.testing.assert_allclose(few, many[:5], rtol=1e-6)


def _stream(client: int) -> np.random.Generator:
    return np.random.default_rng([7, client])
