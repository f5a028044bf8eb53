import numpy as np
import pytest
from sklearn.kernel_approximation import RBFSampler  # type: ignore[import-untyped]

from codedfedl import InputError
from codedfedl.learning.features import (
    FeatureMap,
    Identity,
    RandomFourier,
    Structured,
    feature_map,
    typical_sigma,
)


@pytest.mark.parametrize("seed", [0, 7])
def test_draws_equal_rbf_sampler_to_the_last_bit(seed: int) -> None:
    sampler = RBFSampler(gamma=1 / (2 * 5.0**2), n_components=300, random_state=seed)
    sampler.fit(np.zeros((1, 64)))
    omega, delta = RandomFourier(300, 5.0, seed).frequencies(64)
    assert (omega == sampler.random_weights_).all()
    assert (delta == sampler.random_offset_).all()


def test_features_equal_rbf_sampler() -> None:
    points = np.random.default_rng(0).random((5000, 20)).astype(np.float32)  # several chunks
    sampler = RBFSampler(gamma=1 / (2 * 2.0**2), n_components=100, random_state=3).fit(points)
    features = RandomFourier(100, 2.0, 3).transform(points)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, sampler.transform(points), atol=2e-6)


@pytest.mark.parametrize("kind", ["fourier", "structured"])
@pytest.mark.parametrize(
    "points",
    [
        np.random.default_rng(1).random((60, 10)),
        np.eye(60, 100) * 1.5,  # differences of two numbers: the hardest for random signs
        np.ones((60, 64)) * np.linspace(0, 0.3, 60)[:, None],  # all along one direction
    ],
    ids=["uniform", "sparse", "line"],
)
def test_error_falls_like_one_over_root_q(kind: str, points: np.ndarray) -> None:
    """The order of convergence to the exact kernel, by regression over a factor of 64 in q.

    Over 30 other sets of seeds the fitted order was −0.49 to −0.51 in the mean, with a deviation of
    0.05 on the line, where all differences are alike, and 0.02 elsewhere. With ±0.2 a false alarm
    has a probability below 1e-3; the seeds are fixed.
    """
    distance = ((points[:, None] - points[None]) ** 2).sum(-1)
    kernel = np.exp(-distance / 2)
    sizes = np.array([64, 256, 1024, 4096])
    errors = []
    for size in sizes:
        squares = []
        for seed in range(8):
            features = feature_map(kind, int(size), 1.0, seed).transform(points).astype(float)
            squares.append(((features @ features.T - kernel) ** 2).mean())
        errors.append(np.sqrt(np.mean(squares)))
    order = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert order == pytest.approx(-0.5, abs=0.2)


def test_identity_is_the_points() -> None:
    points = np.random.default_rng(0).random((10, 4))
    assert (Identity().transform(points) == points).all()
    assert Identity().size(4) == 4
    assert Identity().macs(4) == 0


@pytest.mark.parametrize("kind", ["fourier", "structured", "identity"])
def test_double_points_have_double_features(kind: str) -> None:
    points = np.random.default_rng(0).random((9, 20))
    maps = feature_map(kind, 50, 1.0, 0)
    double, single = maps.transform(points), maps.transform(points.astype(np.float32))
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(single, double, atol=2e-6)


def test_typical_sigma() -> None:
    """Half the root mean square distance of two points, which is what the paper has on MNIST."""
    points = np.random.default_rng(0).standard_normal((2000, 8)) * 3
    apart = points[:1000] - points[1000:]
    assert typical_sigma(points) == pytest.approx(np.sqrt((apart**2).sum(1).mean()) / 2, rel=0.05)
    assert typical_sigma(np.ones((5, 2))) == 1.0


def test_costs() -> None:
    assert RandomFourier(2000).macs(784) == 784 * 2000
    assert Structured(2000).macs(784) == (1 + 2) * 1024 * 10 + 2000


def test_structured_features_equal_the_product_with_their_frequencies() -> None:
    """Column i of ω is what the unit vectors are projected on; rows of a block are orthogonal."""
    maps, inputs = Structured(150, 2.0, 5), 64
    shared, own, lengths, delta = maps.draws(inputs)
    assert set(np.unique(shared)) == {-1.0, 1.0}
    unit = np.eye(inputs)
    # arccos is ambiguous, so recover ω from differences at small steps
    step = 1e-2
    low, high = (np.sqrt(75.0) * maps.transform(s * unit).astype(float) for s in (-step, step))
    omega = (low - high) / (2 * step) / np.sin(delta)
    block = omega[:, :64] / lengths[:64]
    np.testing.assert_allclose(block.T @ block, np.eye(64), atol=2e-3)
    np.testing.assert_allclose((omega**2).sum(0), lengths**2, rtol=2e-3)
    points = np.random.default_rng(0).random((7, inputs)) * 0.2
    dense = np.sqrt(2 / 150) * np.cos(points @ omega + delta)
    np.testing.assert_allclose(maps.transform(points), dense, atol=2e-3)
    assert own.shape == (3, 64)


@pytest.mark.parametrize("inputs", [1, 3, 64, 100])
@pytest.mark.parametrize("size", [1, 10, 200])
def test_structured_features_take_any_sizes(inputs: int, size: int) -> None:
    points = np.random.default_rng(0).random((5, inputs)).astype(np.float32)
    maps: FeatureMap = Structured(size, 1.0, 0)
    features = maps.transform(points)
    assert features.shape == (5, size)
    assert features.dtype == np.float32
    assert (features == maps.transform(points)).all()
    assert np.isfinite(features).all()


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="sigma is 0"):
        RandomFourier(10, 0.0)
    with pytest.raises(InputError, match="n_components is 0"):
        RandomFourier(0)
    with pytest.raises(InputError, match=r"features\.kind is 'poly'"):
        feature_map("poly", 1, 1.0, 0)
