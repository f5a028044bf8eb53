"""Draw accuracy over time: waiting for all devices, and `paced`. MNIST's files, PyTorch, 6 minutes.

Usage: python examples/race.py race.png [HOURS]
"""

import sys

from matplotlib.figure import Figure

from codedfedl import read_experiment, simulate

NAMES = {"uncoded": "waiting for all devices", "paced": "codedfedl"}


def race(hours):
    """Return the results of two of the schemes that `codedfedl reproduce deep` compares."""
    deep = read_experiment("deep-mnist-paper")
    training = deep.training.model_copy(update={"hours": hours, "target": 0.9})
    schemes = [next(s for s in deep.schemes if s.name == name) for name in NAMES]
    return simulate(
        deep.model_copy(update={"seeds": [0], "training": training, "schemes": schemes})
    )


def draw(results):
    """Return a figure with a line for each scheme, and its name beside it."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    ax = figure.subplots()
    for result, colour, height in zip(results, ("#d9541e", "#1f5fa8"), (-0.045, 0.012)):
        (curve,) = result.seeds
        ax.plot(curve.total_hours, curve.metric, color=colour, lw=1.3)
        middle = len(curve.metric) * 2 // 3
        ax.text(
            curve.total_hours[middle],
            curve.metric[middle] + height,
            NAMES[result.scheme],
            color=colour,
            weight="bold",
        )
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(ylim=(0.7, 1.0), xlim=(0, None), xlabel="hours", ylabel="accuracy on the test set")
    ax.yaxis.set_major_formatter("{x:.0%}")
    return figure


if __name__ == "__main__":
    draw(race(float(sys.argv[2]) if len(sys.argv) > 2 else 5.0)).savefig(sys.argv[1], dpi=160)
