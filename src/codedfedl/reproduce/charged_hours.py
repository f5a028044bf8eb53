"""Beyond the paper: hours from a cold start, wrong plans, exact solutions, and guarantees."""

from itertools import product
from math import inf
from typing import Any

import numpy as np
from rich.text import Text

from codedfedl.fleet.built_in import paper_result
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.reading import Curve, curves
from codedfedl.report.results import Outcome, median_of_all, outcomes, written
from codedfedl.reproduce.reproduction import PAPER_DATASETS, Reproduction
from codedfedl.runs.config import USUAL_CLIENTS, Experiment
from codedfedl.schemes import make_scheme

_FEWER_PATCHES = 1152  # 32 filters
_AS_PLANNED = "as planned"
_DELAYS: dict[str, dict[str, Any]] = {
    _AS_PLANNED: {},
    "all 2 times slower": {"fleet.slower": 2.0},
    "slowest third 5 times slower": {"fleet.slower": 5.0, "fleet.slower_share": 0.3334},
}
_SPARSE = {"name": "coded", "redundancy": 0.1, "code": "sparse", "nonzeros": 32}
_ROBUST: tuple[tuple[dict[str, Any], int, int, tuple[float, ...]], ...] = (
    # schemes, rounds after which they plan again, epochs, and the hours at which they are compared
    ({"name": "coded-newton", "hours": 3.0}, 10, 300, (1.0, 2.0, 3.0)),
    ({"name": "balanced"}, 10, 300, (2.0, 5.0, 8.0, 11.0)),
    (_SPARSE, 10, 100, (50.0, 100.0, 200.0)),
)
_EXACT = (  # a scheme, and the one that gives the exact solution
    {"name": "coded-newton", "deadline": 1800.0, "hours": 96.0},
    {"name": "one-shot"},
)
_SETTINGS = ("regression", "homogeneous", "thousand")


def cold_start(job: Reproduction) -> dict[str, Any]:
    """Every scheme's hours from a cold start, and the picture."""
    from codedfedl.report.curves import cold_start_figure

    cases = {dataset: _cold_starts(job, dataset) for dataset in PAPER_DATASETS}
    runs = job.run({name: case[name] for case in cases.values() for name in case})
    for dataset, case in cases.items():
        name, experiment = next(iter(case.items()))
        target = experiment.training.target
        known = (paper_result(dataset, "uncoded", None), paper_result(dataset, "coded", 0.1))
        assert target is not None
        hours = [result[0] for result in known if result is not None]
        figure = cold_start_figure(curves(runs[name]), experiment.title, target, hours)
        job.save_pictures(figure, name)
        job.write_report(runs[name])
    every = [outcome for directory in runs.values() for outcome in outcomes(directory)]
    job.show_outcomes(every)
    return {"rows": outcome_rows(every)}


def _cold_starts(job: Reproduction, dataset: str) -> dict[str, Experiment]:
    """Return all schemes, and on features of patches those that pay for them.

    With patches they train to a target of their own, and with fewer of them to the paper's: fewer
    features shorten the set-up, and suffice for it.
    """
    first, patches = job.built_in(f"coldstart-{dataset}"), f"coldstart-patches-{dataset}"
    fewer = {"features.n_components": _FEWER_PATCHES, "training.target": first.training.target}
    return {
        f"coldstart-{dataset}": first,
        patches: job.built_in(patches),
        f"coldstart-few-{dataset}": job.built_in(patches, fewer),
    }


def robustness(job: Reproduction) -> dict[str, Any]:
    """Compare the metric at equal hours, when clients are slower than the plans assume.

    A plan is fixed, follows the clients, or knew the delays; losses are relative to the last.
    """
    datasets = [job.dataset] if job.dataset else PAPER_DATASETS
    cases = {case: _robust(job, *case) for case in product(datasets, range(len(_ROBUST)), _DELAYS)}
    experiments = {name: experiment for case in cases.values() for name, experiment in case.items()}
    runs, rows = job.run(experiments), []
    for (dataset, number, delays), case in cases.items():
        scheme, _, _, hours = _ROBUST[number]
        by_setting = [outcome.seeds for name in case for outcome in outcomes(runs[name])]
        plans = dict(zip(("kept", "follows", "foreseen"), by_setting, strict=False))
        for hour in hours:
            reached = {
                plan: median_of_all([curve.at(hour) for curve in seeds])
                for plan, seeds in plans.items()
            }
            right = reached.get("foreseen", reached["kept"])
            for plan, metric in reached.items():
                row = {"dataset": dataset, "scheme": scheme["name"], "delays": delays, "plan": plan}
                lost = None if right is None or metric is None else 100 * (right - metric)
                rows.append(row | {"hours": hour, "metric": metric, "points_lost": lost})
    job.show(rows)
    return {"rows": rows}


def _robust(job: Reproduction, dataset: str, number: int, delays: str) -> dict[str, Experiment]:
    """Return a scheme that keeps its plan and that follows, and one that knew the delays."""
    scheme, replan, epochs, _ = _ROBUST[number]
    changes = {"training.epochs": epochs, **_DELAYS[delays]}
    name = f"robustness-{dataset}-{scheme['name']}-{delays.replace(' ', '-')}"
    kept, following = scheme | {"replan": 0}, scheme | {"replan": replan}
    both = job.built_in(f"coldstart-{dataset}", changes | {"schemes": [kept, following]})
    if delays == _AS_PLANNED:
        return {name: both}
    known = changes | {"schemes": [kept], "fleet.foreseen": True}
    return {name: both, f"{name}-foreseen": job.built_in(f"coldstart-{dataset}", known)}


def quality(job: Reproduction) -> dict[str, Any]:
    """Count the rounds until the objective is within 1% of exact ridge's, with a third late."""
    changes, rows = {"schemes": list(_EXACT)}, []
    names = {f"quality-{dataset}": dataset for dataset in PAPER_DATASETS}
    experiments = {
        name: job.built_in(f"coldstart-{dataset}", changes) for name, dataset in names.items()
    }
    for name, directory in job.run(experiments).items():
        newton, one_shot = outcomes(directory)
        clients = experiments[name].fleet.clients or USUAL_CLIENTS
        rows += [
            {"dataset": names[name]} | rounds_to_exact(curve, exact, clients)
            for curve, exact in zip(newton.seeds, one_shot.seeds, strict=True)
        ]
    job.show(rows)
    return {"rows": rows}


def rounds_to_exact(curve: Curve, exact: Curve, clients: int) -> dict[str, Any]:
    """Return the first round within 1% of the objective and 0.3 points of the accuracy."""
    best = float(exact.metric[-1])
    close = (curve.excess < 0.01) & (curve.metric > best - 0.003)
    first = int(np.argmax(close)) if close.any() else None
    late = 1 - curve.arrived[1:] / clients
    return {
        "seed": curve.seed,
        "rounds": None if first is None else int(curve.rounds[first]),
        "hours": None if first is None else float(curve.total_hours[first]),
        "late_share": float(late.mean()),
        "least_late_share": float(late.min()),
        "final_excess": float(curve.excess[-1]),
        "final": written(curve.metric_name, float(curve.metric[-1])),
        "exact_ridge": written(curve.metric_name, best),
    }


def settings(job: Reproduction) -> dict[str, Any]:
    """Run all schemes in three settings that nobody tuned for."""
    experiments = {f"setting-{name}": job.built_in(f"setting-{name}") for name in _SETTINGS}
    document = {}
    for name, directory in job.run(experiments).items():
        every = outcomes(directory)
        job.show(Text(f"\n{experiments[name].title}", style="bold"))
        job.show_outcomes(every)
        document[name.removeprefix("setting-")] = outcome_rows(every)
    return {"settings": document}


def private(job: Reproduction) -> dict[str, Any]:
    """Hours and accuracy at ε = 1, 3, 8 and ∞ beside the raw upload, and the picture."""
    from codedfedl.report.curves import price_figure

    by_dataset = {dataset: job.built_in(f"private-{dataset}") for dataset in PAPER_DATASETS}
    skipped = [name for name, experiment in by_dataset.items() if not job.has(experiment.data.name)]
    names = {f"private-{name}": name for name in PAPER_DATASETS if name not in skipped}
    runs = job.run({name: by_dataset[dataset] for name, dataset in names.items()})
    every = [outcome for directory in runs.values() for outcome in outcomes(directory)]
    panels = []
    for name, directory in runs.items():
        experiment = by_dataset[names[name]]
        assert experiment.training.target is not None
        panels.append((experiment.title, experiment.training.target, curves(directory)))
        job.write_report(directory)
    if panels:
        job.save_pictures(price_figure(panels), "private")
        job.show_outcomes(every)
    return {"rows": _with_guarantees(every), "skipped": skipped}


def _with_guarantees(every: list[Outcome]) -> list[dict[str, Any]]:
    """Return the rows of every simulation, with ε and δ."""
    rows = []
    for outcome, row in zip(every, outcome_rows(every), strict=True):
        scheme = make_scheme(outcome.scheme, outcome.cell.scheme_settings)
        epsilon, delta = (getattr(scheme, name, None) for name in ("epsilon", "delta"))
        guarantee = {"epsilon": epsilon, "delta": delta}
        if epsilon == inf:  # no noise: the sums themselves leave
            guarantee = {"epsilon": None, "delta": None, "disclosure": ["sums"]}
        rows.append(row | guarantee)
    return rows
