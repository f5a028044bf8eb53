"""Mixing is not privacy: `python -m benchmarks.membership`; CODEDFEDL_DATA names MNIST's folder.

A curious server knows the feature map, has one client's parity, and has 2,000 public points of the
client's class. It guesses whether a point is one of the client's from how well the point explains
the parity rows, by the better of two measures. The area under the ROC curve says how well that
works: 0.5 is chance, 1 is certainty.
"""

import numpy as np
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

from codedfedl.codes import Code
from codedfedl.data import load_dataset
from codedfedl.features import Structured
from codedfedl.fleet import FloatArray

_CLASSES = (0, 3, 8)
_SENT = (
    ("paper: 400 points, 1,200 Gaussian rows", 400, 1200, Code("gaussian")),
    ("400 points, 1,200 sparse rows, 32 non-zeros", 400, 1200, Code("sparse", 32)),
    ("block: 2,000 points, 200 rows of 10", 2000, 200, Code("balanced", 1)),
    ("block: 2,000 points, 200 rows of 40", 2000, 200, Code("balanced", 4)),
    ("block: 2,000 points, 50 rows of 40", 2000, 50, Code("balanced", 1)),
    ("block: 120 points, 12 rows of 10", 120, 12, Code("balanced", 1)),
)


def scores(parity: FloatArray, points: FloatArray, public: FloatArray) -> FloatArray:
    """Return how much each point explains of the parity, by two measures: (2, points)."""
    moment = public.T @ public / len(public)
    moment += 1e-3 * np.trace(moment) / len(moment) * np.eye(len(moment))
    whitened = np.linalg.solve(moment, points.T)
    if len(parity) > len(points):  # tall: what is outside the rows' span gives a stranger away
        basis = np.linalg.svd(parity, full_matrices=False)
        kept = basis.Vh[1e-4 * basis.S[0] < basis.S]
        outside = -np.linalg.norm(points - points @ kept.T @ kept, axis=1)
        return np.array([outside, outside])
    leverage = np.einsum("ij,ji->i", points, whitened)
    explained = np.abs(parity @ whitened) / leverage
    return np.array([explained.max(0), (explained**2).sum(0)])


def main() -> None:
    data = load_dataset("mnist")
    for name, held, rows, code in _SENT:
        areas = []
        for digit in _CLASSES:
            rng = np.random.default_rng(digit)
            mine = rng.permutation(np.flatnonzero(data.labels == digit))
            features = Structured().transform(data.inputs[mine[: held + 2500]]).astype(np.float64)
            members, strangers = features[:held], features[held : held + 500]
            (parity,) = code.mix((members.astype(np.float32),), np.ones(held), rows, rng)
            tried = np.concatenate([members[:500], strangers])
            found = scores(np.asarray(parity, np.float64), tried, features[held + 500 :])
            inside = np.arange(len(tried)) < len(members[:500])
            areas.append([roc_auc_score(inside, measure) for measure in found])
        best = np.array(areas)[:, np.argmax(np.mean(areas, axis=0))]
        print(f"{name:46} area {best.mean():.3f} ({best.min():.3f}–{best.max():.3f})")


if __name__ == "__main__":
    main()
