"""What scikit-learn's models reach on all points in one place: what a federation is measured by."""

from functools import lru_cache
from typing import Any

import numpy as np

from codedfedl.core.columns import POOLED
from codedfedl.data import Dataset

MAX_POINTS = 10_000
"""Of more points a sample is taken: kernel machines need the square of it."""


@lru_cache(maxsize=8)
def pooled_metrics(dataset: Dataset) -> dict[str, float]:
    """Return the test metric of each baseline with scikit-learn's defaults, by `POOLED`.

    Inputs are those of the federation. They are for tables: others have none.
    """
    several = not dataset.is_classification and dataset.label_columns > 1
    if not dataset.origin.columns or dataset.is_text or several:
        return {}
    from sklearn.ensemble import (  # type: ignore[import-untyped]
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
    from sklearn.svm import SVC, SVR  # type: ignore[import-untyped]

    points = np.random.default_rng(0).permutation(len(dataset.inputs))[:MAX_POINTS]
    inputs = dataset.inputs[points].astype(np.float64)
    labels, centre, unit = dataset.labels[points].ravel(), 0.0, 1.0
    if dataset.is_classification:
        if len(np.unique(labels)) == 1:
            return {}
        models: list[Any] = [LogisticRegression(max_iter=1000), SVC()]
        models.append(HistGradientBoostingClassifier(random_state=0))
    else:
        centre, unit = float(labels.mean()), float(labels.std()) or 1.0
        models = [Ridge(), SVR(), HistGradientBoostingRegressor(random_state=0)]
    tested = (dataset.test_labels.ravel() - centre) / unit
    tests = dataset.test_inputs.astype(np.float64)
    scores = [model.fit(inputs, (labels - centre) / unit).score(tests, tested) for model in models]
    return dict(zip(POOLED, map(float, scores), strict=True))
