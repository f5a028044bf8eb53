"""Mixing is not privacy: `python -m benchmarks.membership`; CODEDFEDL_DATA names MNIST's folder.

A curious server knows the feature map, has one client's parity, and has 2,000 public points of the
client's class. It guesses whether a point is one of the client's from how well the point explains
its best parity row, in the metric of the public points. The area under the ROC curve says how well
that works: 0.5 is chance, 1 is certainty.
"""

import numpy as np
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]

from codedfedl.arrays import FloatArray
from codedfedl.data import load_dataset
from codedfedl.learning.codes import Code
from codedfedl.learning.features import Structured

_CLASSES = (0, 3, 8)
_SHRINKAGE = 0.1  # of the public points' second moment; an attacker would try some
_SENT = (
    ("paper: 400 points, 1,200 Gaussian rows", 400, 1200, Code("gaussian")),
    ("400 points, 1,200 sparse rows, 32 non-zeros", 400, 1200, Code("sparse", 32)),
    ("block: 2,000 points, 200 rows of 10", 2000, 200, Code("balanced", 1)),
    ("block: 2,000 points, 200 rows of 40", 2000, 200, Code("balanced", 4)),
    ("block: 2,000 points, 50 rows of 40", 2000, 50, Code("balanced", 1)),
    ("block: 120 points, 12 rows of 10", 120, 12, Code("balanced", 1)),
)


def scores(parity: FloatArray, points: FloatArray, public: FloatArray) -> FloatArray:
    """Return how well each point explains the parity row that it explains best."""
    if len(parity) > len(points):  # tall: what is outside the rows' span gives a stranger away
        basis = np.linalg.svd(parity, full_matrices=False)
        kept = basis.Vh[1e-4 * basis.S[0] < basis.S]
        return np.asarray(-np.linalg.norm(points - points @ kept.T @ kept, axis=1))
    moment = public.T @ public / len(public)
    moment += _SHRINKAGE * np.trace(moment) / len(moment) * np.eye(len(moment))
    whitened = np.linalg.solve(moment, points.T)
    leverage = np.einsum("ij,ji->i", points, whitened)
    return np.asarray((np.abs(parity @ whitened) / leverage).max(0))


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
            areas.append(roc_auc_score(inside, found))
        print(f"{name:46} area {np.mean(areas):.3f} ({min(areas):.3f}–{max(areas):.3f})")


if __name__ == "__main__":
    main()
