"""What the server of `coded-newton` computes: `python -m benchmarks.decompose --device cuda`.

Parity with four rows a feature, as plans have it, of points whose covariance falls off like 1/k.
Seconds of every step of the set-up; of rows that come late, as an update and by another
decomposition; and of one step in a round.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray, to_device
from codedfedl.learning.sketch import Sketch, damping

_LABELS, _RIDGE = 10, 0.5


def timed(name: str, work: Callable[[], Any]) -> Any:
    """Do some work once, and print its seconds and the processor's."""
    start, busy = time.perf_counter(), time.process_time()
    result = work()
    last = result.features if isinstance(result, Sketch) else result
    if not isinstance(last, float):
        float(last[-1, -1])  # reading a number waits for a GPU
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    print(f"  {name:36} {seconds:8.2f} s   processor {busy:8.2f} s", flush=True)
    return result


def parity(rows: int, features: int, seed: int, device: str) -> tuple[Array, Array]:
    """Draw rows in the 16 bits in which clients send them, and targets."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, features), dtype=np.float32)
    x *= 30 / np.sqrt(np.arange(1, features + 1, dtype=np.float32))
    truth = np.random.default_rng(0).standard_normal((features, _LABELS), dtype=np.float32)
    y = x @ truth + 10 * rng.standard_normal((rows, _LABELS), dtype=np.float32)
    return to_device(x.astype(np.float16), device), to_device(y, device)


def newton(sketch: Sketch, gradient: FloatArray) -> FloatArray:
    """Return a step and its decrement, as a round does."""
    slope = sketch.to_basis(gradient)
    sketch.solve(sketch.apply_hessian(slope), 1.1, _RIDGE)
    return sketch.from_basis(sketch.solve(slope, 1.1, 30.0))


def alone(x: Array) -> None:
    """Print the seconds of the three steps that a decomposition consists of."""
    xp = array_namespace(x)
    x = xp.astype(x, xp.float64)
    gram = timed("Gram matrix", lambda: x.T @ x)
    basis = timed("eigenvectors", lambda: xp.linalg.eigh(gram)[1])
    timed("rows in their basis", lambda: x @ basis)


def set_up(x: Array, y: Array) -> Sketch:
    """Return a sketch, and print the seconds of everything that a set-up does with it."""
    sketch: Sketch = timed("set-up: sketch", partial(Sketch.of, x, y))
    ridge = timed("set-up: choice of the ridge", partial(sketch.best_ridge, _RIDGE))
    timed("set-up: first model", partial(sketch.ridge_regression, ridge))
    timed("set-up: its excess", partial(sketch.excess, ridge, _RIDGE))
    timed("set-up: damping", partial(damping, sketch, _RIDGE, np.random.default_rng(0)))
    return sketch


def measure(features: int, rows: int, late: int, device: str) -> None:
    """Print the seconds of a size."""
    print(f"{features:,} features, {rows:,} rows, {late:,} late ones, on {device}")
    x, y = parity(rows, features, 1, device)
    alone(x)
    sketch = timed("set-up in all", partial(set_up, x, y))
    gradient = np.random.default_rng(2).standard_normal((features, _LABELS))
    timed("a step", partial(newton, sketch, gradient))
    more = parity(late, features, 3, device)
    updated = timed("late rows: update", partial(sketch.with_rows, *more))
    step = timed("late rows: a step", partial(newton, updated, gradient))
    timed("late rows: smallest objective", partial(updated.smallest_objective, _RIDGE))
    xp = array_namespace(x)
    whole = xp.concat([x, more[0]]), xp.concat([y, more[1]])
    anew = timed("late rows: another decomposition", partial(Sketch.of, *whole))
    apart = np.abs(newton(anew, gradient) - step).max() / np.abs(step).max()
    print(f"  steps {apart:.0e} apart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, torch, cuda or cupy")
    parser.add_argument("--features", type=int, nargs="+", default=[2000, 4000, 8000])
    parser.add_argument("--rows", type=int, default=4, help="parity rows for every feature")
    parser.add_argument("--late", type=float, default=0.04, help="late rows, as a share of them")
    options = parser.parse_args()
    for features in options.features:
        rows = options.rows * features
        measure(features, rows, int(options.late * rows), options.device)


if __name__ == "__main__":
    main()
