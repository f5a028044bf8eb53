"""Features of patches, against loops that read like their definition."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard

from codedfedl import CodedFedLClassifier, InputError, load_dataset
from codedfedl.data import Dataset
from codedfedl.federate.server.session import federate
from codedfedl.learning.features import Patches, Tiles, feature_map, patches
from codedfedl.learning.features.patches import Tiling
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate
from codedfedl.simulation.replay import replay
from tests.loopback import Script, experiment_of, transport_of
from tests.virtual import small


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Tiles, int]:
    """Images of any small size and channels, cut in any way, or as the defaults say."""
    height, width, channels = draw(st.tuples(*[st.integers(2, 11)] * 2, st.integers(1, 3)))
    patch = draw(st.none() | st.integers(2, min(height, width)))
    stride, pool = draw(st.tuples(*[st.none() | st.integers(1, 4)] * 2))
    if patch is None and min(height, width) < 3:  # of one pixel there is nothing left
        patch = 2
    return Tiles((height, width, channels), patch, stride, pool), height * width * channels


def by_loops(maps: Patches, points: np.ndarray) -> np.ndarray:
    """Every cell, filter and patch by itself, with the matrices written out."""
    tiling = maps.tiles.on(points.shape[1])
    (height, width, channels), side, n = tiling.image, tiling.patch, tiling.width
    filters = maps.filters(points.shape[1])
    random = np.random.RandomState(maps.seed)
    first = random.choice([-1.0, 1.0], n)
    second = random.choice([-1.0, 1.0], (-(-filters // n), n))
    delta = random.uniform(0, 2 * np.pi, filters)
    rotation = hadamard(n) / np.sqrt(n)
    sigma = maps.sigma * np.sqrt(side * side * channels / (height * width * channels))
    cells = [list(product(range(a, b), range(c, d))) for a, b, c, d in cells_of(tiling)]
    features = np.zeros((len(points), len(cells) * filters))
    for i, point in enumerate(points):
        image = point.reshape(height, width, channels)
        for c, places in enumerate(cells):
            for f in range(filters):
                values = []
                for down, across in places:
                    top, left = down * tiling.stride, across * tiling.stride
                    patch = image[top : top + side, left : left + side].ravel()
                    padded = np.zeros(n)
                    padded[: len(patch)] = patch - patch.mean()
                    mixed = rotation @ (second[f // n] * (rotation @ (first * padded)))
                    wave = np.cos(np.sqrt(n) / sigma * mixed[f % n] + delta[f])
                    values.append(wave - np.cos(delta[f]))
                scale = np.sqrt(2 / (len(cells) * filters))
                features[i, c * filters + f] = scale * np.mean(values)
    return features


def cells_of(tiling: Tiling) -> list[tuple[int, int, int, int]]:
    """Where each cell begins and ends: as even as whole patches allow, and none left out."""
    (rows, columns), (down, across) = tiling.positions, tiling.cells
    return [
        (
            i * rows // down,
            (i + 1) * rows // down,
            j * columns // across,
            (j + 1) * columns // across,
        )
        for i in range(down)
        for j in range(across)
    ]


@given(cut=cuts(), components=st.integers(1, 90), seed=st.integers(0, 3))
def test_features_equal_loops(cut: tuple[Tiles, int], components: int, seed: int) -> None:
    tiles, inputs = cut
    maps = Patches(components, 2.0, seed, tiles)
    points = np.random.default_rng(seed).random((2, inputs))
    np.testing.assert_allclose(maps.transform(points), by_loops(maps, points), atol=1e-12)


def test_more_filters_than_a_patch_has_pixels() -> None:
    maps = Patches(150, 1.0, 0, Tiles(pool=1))
    points = np.random.default_rng(0).random((2, 64))
    assert maps.filters(64) == 150
    np.testing.assert_allclose(maps.transform(points), by_loops(maps, points), atol=1e-12)


def test_single_precision_is_close_to_double() -> None:
    maps, points = Patches(500, 2.0), np.random.default_rng(0).random((300, 64))
    double, single = maps.transform(points), maps.transform(points.astype(np.float32))
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(single, double, atol=2e-6)


@pytest.mark.extras
def test_pytorch_gives_the_same_features() -> None:
    torch = pytest.importorskip("torch")
    points = np.random.default_rng(0).random((300, 7 * 9 * 2))
    maps = Patches(500, 2.0, 0, Tiles((7, 9, 2)))
    found = maps.transform(torch.asarray(points))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), maps.transform(points), atol=1e-12)


def test_memory_does_not_grow_with_the_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many points there are, so many patches are cut at a time, and no more."""
    cut: list[int] = []

    def counted(waves: Any, tiling: Tiling) -> Any:
        cut.append(waves.size)
        return pooled(waves, tiling)

    pooled = patches.averaged_over_cells
    maps, points = Patches(200, 2.0), np.random.default_rng(0).random((1000, 64))
    whole = maps.transform(points)
    most = 25 * 16 * 7  # numbers of seven points
    monkeypatch.setattr(patches, "NUMBERS_AT_ONCE", most)
    monkeypatch.setattr(patches, "averaged_over_cells", counted)
    np.testing.assert_allclose(maps.transform(points), whole, atol=1e-15)
    assert max(cut) <= most
    assert sum(cut) == 1000 * 25 * 8


def test_an_even_image_gives_nothing() -> None:
    even = np.ones((3, 64)) * np.array([[0.0], [0.3], [1.0]])
    assert np.abs(Patches(100, 0.5).transform(even)).max() < 1e-12


@given(seed=st.integers(0, 20), sigma=st.floats(0.01, 5))
def test_length_is_bounded(seed: int, sigma: float) -> None:
    points = 100 * np.random.default_rng(seed).standard_normal((20, 36))
    maps = Patches(1 + seed, sigma, seed, Tiles(pool=1 + seed % 3))
    assert (maps.transform(points) ** 2).sum(axis=1).max() <= maps.largest_square


@pytest.mark.parametrize(
    ("image", "patch", "stride", "cells"),
    [
        ((28, 28, 1), 8, 2, (6, 6)),
        ((32, 32, 3), 8, 2, (6, 6)),
        ((8, 8, 1), 4, 1, (5, 5)),
        ((4, 8, 1), 2, 1, (3, 6)),
        ((224, 160, 3), 8, 2, (6, 6)),
    ],
)
def test_defaults(
    image: tuple[int, int, int], patch: int, stride: int, cells: tuple[int, int]
) -> None:
    tiling = Tiles(image).on(int(np.prod(image)))
    assert (tiling.patch, tiling.stride, tiling.cells) == (patch, stride, cells)


def test_size_is_the_largest_multiple_of_the_cells() -> None:
    sizes = [Patches(n).size(784) for n in (1, 36, 71, 72, 2016, 2051)]
    assert sizes == [36, 36, 36, 72, 2016, 2016]


def additions(n: int, wanted: int) -> int:
    """Count the additions of a Hadamard transform, of which the first numbers are wanted."""
    if n == 1:
        return 0
    if wanted <= n // 2:  # of the sum of both halves
        return n // 2 + additions(n // 2, wanted)
    return n + 2 * additions(n // 2, n // 2)


def test_costs() -> None:
    """11×11 patches of 64 pixels; 80 filters are a block of 64, and one of which 16 are wanted."""
    a_patch = 4 + 2 * additions(64, 64) + additions(64, 16) + 4 * 80
    assert Patches(2000, tiles=Tiles(pool=5)).macs(784) == 3 * 784 + 121 * a_patch + 2000
    colour = Patches(2000, tiles=Tiles((32, 32, 3), stride=4, pool=5))  # 192 numbers of 256
    a_patch = 4 + additions(256, 256) + additions(256, 80) + 4 * 80
    assert colour.macs(3072) == 3 * 3072 + 49 * a_patch + 2000


def test_a_seed_means_the_same_everywhere() -> None:
    omega, delta = Patches(50, 1.0, 7, Tiles(pool=5)).frequencies(784)
    np.testing.assert_allclose(omega.sum(axis=0), 0, atol=1e-12)
    found = [omega[3, 0], omega[40, 1], delta[0], delta[1]]
    pinned = [8.5859375, 1.6953125, 3.723382232502898, 1.4773050882981802]
    np.testing.assert_allclose(found, pinned, rtol=1e-12)


@pytest.mark.parametrize(
    ("tiles", "inputs", "said"),
    [
        (Tiles(), 63, r"points of 63 numbers are not square images: give features\.image"),
        (Tiles((8, 8, 3)), 64, r"features\.image is \[8, 8, 3\], and points have 64 numbers"),
        (Tiles(patch=9), 64, r"features\.patch is 9 where images are 8×8"),
        (Tiles((1, 64, 1)), 64, r"features\.patch is 1 where images are 1×64"),
    ],
)
def test_what_is_no_image_is_refused(tiles: Tiles, inputs: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Patches(100, tiles=tiles).size(inputs)


def test_a_table_without_images_is_refused(tmp_path: Path) -> None:
    """Before anything is computed, with the key that helps."""
    table = tmp_path / "table.csv"
    table.write_text("a,b,c,label\n" + "0.1,0.2,0.3,0\n0.5,0.1,0.9,1\n" * 60)
    experiment = small(data={"name": str(table)}, features={"kind": "patches"})
    with pytest.raises(InputError, match=r"features\.image = \[height, width, channels\]"):
        simulate(experiment, RunDirectory(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_data_know_their_images(tmp_path: Path) -> None:
    assert load_dataset("digits").image == (8, 8, 1)
    assert load_dataset("digits-halves").image == (4, 8, 1)
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (40, 5, 6, 3)), np.arange(40) % 2
    images[:, 0, 0, 0] = 7  # a pixel that is always the same is scaled like all others
    np.savez(tmp_path / "images.npz", inputs=images, labels=labels)
    found = load_dataset(tmp_path / "images.npz")
    assert found.image == (5, 6, 3)
    assert np.ptp(found.inputs[:, 0]) == 0 < found.inputs[0, 0] < 0.1
    assert found.inputs.max() == 1
    points, classes = np.ones((2, 8), dtype=np.float32), np.arange(2)
    with pytest.raises(InputError, match=r"image is \(3, 3, 1\) where inputs has 8 columns"):
        Dataset("x", points, classes, points, classes, 2, (3, 3, 1))


def test_a_simulation_on_patches_is_resumed(tmp_path: Path) -> None:
    features = {"kind": "patches", "n_components": 100, "stride": 2}
    experiment = small(seeds=[0, 1], features=features)
    whole, part = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "part")
    simulate(experiment, whole)
    played = 0

    def stop(_doing: str, progress: Any) -> None:
        nonlocal played
        played += progress is not None
        if played > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(experiment, part, watch=stop)
    simulate(experiment, part, resume=True)
    one, other = whole.checkpoint(), part.checkpoint()
    assert one is not None
    assert other is not None
    assert all((one[name] == other[name]).all() for name in one if name.endswith("model"))


def test_a_federation_on_patches_is_replayed_and_refuses_other_images(tmp_path: Path) -> None:
    features = {"kind": "patches", "n_components": 100, "sigma": 2.0}
    scheme = {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10}
    experiment = experiment_of(4, 3, scheme).model_copy(
        update={"features": experiment_of().features.model_copy(update=features)}
    )

    def change(client: int, kind: str, answer: Any) -> Any:
        facts, arrays = answer
        return (facts | {"inputs": 65} if (client, kind) == (3, "hello") else facts), arrays

    directory = RunDirectory(tmp_path / "run")
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, lambda _: None)
    assert replay(directory).same
    refused: list[str] = []
    liar = transport_of(experiment, tmp_path / "others", Script(change=change))
    with pytest.raises(InputError, match="3 of 4 nodes are ready"):
        federate(liar, experiment, RunDirectory(tmp_path / "two"), refused.append)
    assert any("points of 65 numbers are not square images" in said for said in refused)


def test_an_estimator_on_images() -> None:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    points, labels = load_digits(return_X_y=True)
    model = CodedFedLClassifier(features="patches", n_components=400, image=(8, 8, 1))
    assert model.fit(points[:1200], labels[:1200]).score(points[1200:], labels[1200:]) > 0.88
    assert model.coef_.shape == (400, 10)
    with pytest.raises(InputError, match=r"features\.image is \[4, 4, 1\]"):
        CodedFedLClassifier(features="patches", image=(4, 4, 1)).fit(points[:200], labels[:200])


def test_the_registry_makes_it() -> None:
    tiles = Tiles((8, 8, 1), stride=2)
    assert feature_map("patches", 100, 2.0, 3, tiles) == Patches(100, 2.0, 3, tiles)
