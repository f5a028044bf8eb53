"""Two liars of ten: how much accuracy each kind of lie costs `coded-newton`.

Run with `python -m benchmarks.liars [SEED …]`: digits in memory, ten rounds, every lie that the
tests know (`tests/liars.py`); a line per seed, the worst lies first.
"""

import sys
import tempfile
from pathlib import Path

from tests.liars import NEWTON, Lie, fresh_lies, lied_to


def accuracy(seed: int, lie: Lie | None) -> float:
    """Return the accuracy after ten rounds."""
    with tempfile.TemporaryDirectory() as folder:
        exchanges, _ = lied_to(Path(folder), NEWTON, lie, rounds=10, seed=seed)
    return float(exchanges[-1].record.metric)


def main(*seeds: int) -> None:
    for seed in seeds:
        honest = accuracy(seed, None)
        lost = {name: 100 * (honest - accuracy(seed, lie)) for name, lie in fresh_lies().items()}
        worst = sorted(lost, key=lambda name: -lost[name])[:3]
        told = "; ".join(f"{name} {lost[name]:.1f}" for name in worst)
        print(f"seed {seed}: accuracy {honest:.4f}; points lost: {told}", flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:] or ["0"]))
