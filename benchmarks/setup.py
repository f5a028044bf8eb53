"""What features and codes cost: `python -m benchmarks.setup [cpu | cuda | cupy]`.

One mini-batch of the paper, 12,000 points of 784 numbers to 2,000 features, and the parity of one
client with 2,000 points; the arithmetic that a client is charged for stands beside the seconds.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from codedfedl.arrays import Array, to_device
from codedfedl.learning.codes import Code
from codedfedl.learning.features import RandomFourier, Structured


def best_of(work: Callable[[], Array], times: int = 5) -> float:
    """Return the shortest of some runs, seconds; a GPU is waited for."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        float(work()[0, 0])  # reading a number waits for the device
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main(device: str) -> None:
    rng = np.random.default_rng(0)
    points = to_device(rng.random((12_000, 784), dtype=np.float32), device)
    print(f"12,000 points to 2,000 features on {device}")
    dense, structured = RandomFourier(), Structured()
    seconds = [best_of(partial(maps.transform, points)) for maps in (dense, structured)]
    _line("random Fourier", seconds[0], dense.macs(784))
    _line("structured", seconds[1], structured.macs(784))
    charged = dense.macs(784) / structured.macs(784)
    faster = seconds[0] / seconds[1]
    print(f"  {faster:.1f} times faster; a client is charged {charged:.0f} times less")
    features = structured.transform(points)[:2000]
    print("Parity of 2,000 points, 200 rows")
    for name, nonzeros in (("gaussian", 1), ("sign", 1), ("sparse", 8), ("balanced", 1)):
        code = Code(name, nonzeros)
        _line(name, best_of(partial(_mixed, code, features)), code.operations(200) * 2000)


def _mixed(code: Code, features: Array) -> Array:
    return code.mix((features,), np.ones(len(features)), 200, np.random.default_rng(0))[0]


def _line(name: str, seconds: float, operations: int) -> None:
    print(f"  {name:14} {1e3 * seconds:8.1f} ms   {operations:9,} operations a point")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
