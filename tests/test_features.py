import numpy as np
import pytest
from sklearn.kernel_approximation import RBFSampler  # type: ignore[import-untyped]

from codedfedl import InputError
from codedfedl.features import Identity, RandomFourier, feature_map


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


def test_error_falls_like_one_over_root_q() -> None:
    """The order of convergence to the exact kernel, by regression over a factor of 64 in q."""
    points = np.random.default_rng(1).random((60, 10))
    distance = ((points[:, None] - points[None]) ** 2).sum(-1)
    kernel = np.exp(-distance / 2)
    sizes = np.array([64, 256, 1024, 4096])
    errors = []
    for size in sizes:
        squares = []
        for seed in range(8):
            features = RandomFourier(int(size), 1.0, seed).transform(points).astype(float)
            squares.append(((features @ features.T - kernel) ** 2).mean())
        errors.append(np.sqrt(np.mean(squares)))
    order = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert order == pytest.approx(-0.5, abs=0.06)


def test_identity_is_the_points() -> None:
    points = np.random.default_rng(0).random((10, 4))
    assert (Identity().transform(points) == points.astype(np.float32)).all()
    assert Identity().size(4) == 4
    assert Identity().macs(4) == 0


def test_costs() -> None:
    assert RandomFourier(2000).macs(784) == 784 * 2000


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="sigma is 0"):
        RandomFourier(10, 0.0)
    with pytest.raises(InputError, match="n_components is 0"):
        RandomFourier(0)
    with pytest.raises(InputError, match=r"features\.kind is 'poly'"):
        feature_map("poly", 1, 1.0, 0)
