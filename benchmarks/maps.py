"""How much feature maps tell of images: `python -m benchmarks.maps`, some minutes.

Exact ridge regression on 15,000 points of the training data, accuracy on 10,000 others of them;
the ridge is the best of four. Test points play no part. The order of the maps in `codedfedl plan
--within` is that of the mean of both data sets.
"""

from typing import Any

import numpy as np

from codedfedl import load_dataset
from codedfedl.learning.features import FeatureMap, Patches, Structured, Tiles

_TRAIN, _HELD_OUT = 15_000, 10_000
_RIDGES = (1e-7, 1e-6, 1e-5, 1e-4)  # a point


def main() -> None:
    """Print a line per map."""
    data = {name: load_dataset(name) for name in ("mnist", "fashion-mnist")}
    print(f"{'map':>12} {'features':>9} {'stride':>7} " + " ".join(f"{n:>14}" for n in data))
    for features, stride in _maps():
        found = [_accuracy(features, one.inputs, one.labels) for one in data.values()]
        words = (type(features).__name__.lower(), f"{features.size(784):,}", stride)
        print("{:>12} {:>9} {:>7} ".format(*words) + " ".join(f"{a:14.2%}" for a in found))


def _maps() -> list[tuple[FeatureMap, str]]:
    sizes = (500, 1000, 2000, 4000)
    maps: list[tuple[FeatureMap, str]] = [(Structured(q, 5.0), "") for q in sizes]
    for stride in (2, 1):
        tiles = Tiles((28, 28, 1), stride=stride)
        maps += [(Patches(q, 5.0, tiles=tiles), str(stride)) for q in sizes[1:]]
    return maps


def _accuracy(features: FeatureMap, inputs: Any, labels: Any) -> float:
    """Return the share of held-out training points whose class is found."""
    order = np.random.default_rng(0).permutation(len(inputs))
    train, held_out = order[:_TRAIN], order[_TRAIN : _TRAIN + _HELD_OUT]
    x, other = (np.asarray(features.transform(inputs[rows]), float) for rows in (train, held_out))
    classes = np.asarray(labels, dtype=np.int64)
    values, vectors = np.linalg.eigh(x.T @ x)
    turned = vectors.T @ (x.T @ np.eye(10)[classes[train]])
    found = (vectors @ (turned / (values + ridge * _TRAIN)[:, None]) for ridge in _RIDGES)
    return max(float(((other @ b).argmax(1) == classes[held_out]).mean()) for b in found)


if __name__ == "__main__":
    main()
