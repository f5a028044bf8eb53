"""Data that nobody tuned for, with defaults: which scheme meets its own target, on which seeds.

Run with `python -m benchmarks.defaults [--data DIR] [--seeds N] [TABLE …]`; a small table takes a
minute on one core. Tables are scikit-learn's, sorted by label on ten clients, and those of people
and hospitals in DIR/natural, each row where it belongs. The target is the package's own: 99% of the
way from chance to exact ridge regression on the same features.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import sklearn.datasets  # type: ignore[import-untyped]

from codedfedl.experiments import built_in
from codedfedl.report.results import Outcome, outcomes
from codedfedl.reproduce.natural import DATASETS
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate

SMALL = ("breast_cancer", "wine", "diabetes")
FLEETS = ("paper", "phones")
SCHEMES = ("coded-newton", "balanced", "uncoded", "one-shot", "sketch-solve")


def settings(table: str, data: Path, folder: Path) -> dict[str, Any]:
    """Return where a table is, and which client has which rows."""
    if table in DATASETS:
        return {"data.name": str(data / "natural" / f"{table}.csv"), **DATASETS[table]}
    frame = getattr(sklearn.datasets, f"load_{table}")(as_frame=True).frame
    frame.to_csv(folder / f"{table}.csv", index=False)
    return {
        "data.name": str(folder / f"{table}.csv"),
        "data.label": "target",
        "data.partition": "sorted",
        "fleet.clients": 10,
    }


def row(seeds: list[Outcome]) -> dict[str, Any]:
    """Return the seconds of one scheme on every seed, beside those that its plan promised."""
    hours = [outcome.total_hours[0] for outcome in seeds]
    planned = [outcome.fact("planned_hours")[0] for outcome in seeds]
    return {
        "scheme": seeds[0].scheme,
        "met": f"{sum(h is not None for h in hours)} of {len(hours)}",
        "seconds": ", ".join("–" if h is None else f"{3600 * h:.3g}" for h in hours),
        "planned": ", ".join("" if p is None else f"{3600 * p:.3g}" for p in planned),
        "final": ", ".join(f"{outcome.final[0]:.3f}" for outcome in seeds),
        "target": ", ".join(f"{outcome.target:.3f}" for outcome in seeds),
    }


def main() -> None:
    """Print a row for every table, fleet and scheme."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=[*SMALL, *DATASETS])
    parser.add_argument("--data", type=Path, default=os.environ.get("CODEDFEDL_DATA", "."))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    for table in given.tables:
        for fleet in FLEETS:
            by_scheme: dict[str, list[Outcome]] = {}
            with tempfile.TemporaryDirectory() as name:
                changes = settings(table, Path(given.data), Path(name)) | {"fleet.name": fleet}
                changes["schemes"] = [{"name": scheme} for scheme in SCHEMES]
                for seed in range(given.seeds):
                    run = RunDirectory(Path(name) / f"run{seed}")
                    seeded = {"seeds": [seed], "data.fold": seed % 5} if table in DATASETS else {}
                    simulate(built_in("natural", changes | {"seeds": [seed]} | seeded), run)
                    for outcome in outcomes(run):
                        by_scheme.setdefault(outcome.scheme, []).append(outcome)
            for each in by_scheme.values():
                shown = {"table": table, "fleet": fleet} | row(each)
                print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)


if __name__ == "__main__":
    main()
