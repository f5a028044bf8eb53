"""Schemes with windows against naive twins: their rules in plain loops over clients and points."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.schemes import make_scheme
from tests.logged import RIDGE, STEP, Log, gradient
from tests.virtual import play, simulation_of


@pytest.mark.parametrize("weights", ["points", "client"])
def test_anytime_counts_who_is_done_in_time(weights: str) -> None:
    log = Log("anytime", window=0.5, weights=weights)
    model, late = np.zeros((64, 10)), 0
    for arrivals, _ in log.rounds:
        total, points = np.zeros_like(model), 0.0
        for job in arrivals.done:
            late += job.round < arrivals.round
            if job.round == arrivals.round:
                weight = job.load if weights == "points" else log.held[job.client]
                total += weight / job.load * gradient(log.points(job), model)
                points += weight
        if points:
            model = model - STEP * (total / points + RIDGE * model)
    log.agrees(model)
    assert late > 3


def test_anytime_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match=r"anytime\.weights is 'class'"):
        make_scheme("anytime", {"weights": "class"})
    with pytest.raises(InputError, match=r"anytime\.window is 0"):
        make_scheme("anytime", {"window": 0.0})


PACED: dict[str, Any] = {"window": 0.5, "deadline": 0.9, "replan": False}


@pytest.mark.parametrize(("weights", "shrink"), [("class", 0.0), ("class", 0.4), ("client", 0.0)])
def test_paced_counts_what_is_expected_to_arrive(weights: str, shrink: float) -> None:
    """Late answers too, at the model that they are for: at the fresh one this fails."""
    log = Log("paced", weights=weights, shrink=shrink, oldest=4, cap=1e9, **PACED)
    plan = log.state.plan
    points, answers = plan.rehearsal.points, plan.rehearsal.answers
    labels = [log.problem.batches[0].client(j)[1].argmax(1) for j in range(6)]
    totals, arriving = np.zeros(10), np.zeros(10)
    for j, mine in enumerate(labels):
        for c in mine:
            totals[c] += 1
            arriving[c] += points[j] / len(mine)
    models, late, too_late = [np.zeros((64, 10))], 0, 0
    for arrivals, _ in log.rounds:
        total = np.zeros((64, 10))
        for job in arrivals.done:
            age = arrivals.round - job.round
            late, too_late = late + (0 < age <= 4), too_late + (age > 4)
            if age > 4:
                continue
            features, targets = log.points(job)
            for x, y in zip(features, targets, strict=True):
                by_client = log.held[job.client] / answers[job.client] / job.load
                by_class = totals[y.argmax()] / arriving[y.argmax()]
                weight = (1 - shrink) * by_class + shrink * by_client
                weight = by_client if weights == "client" else weight
                total += weight * gradient((x[None], y[None]), models[job.round])
        step = total / log.held.sum() + RIDGE * models[-1]
        models.append(models[-1] - STEP * step if arrivals.done else models[-1])
    log.agrees(models[-1])
    assert late > 3


def test_paced_expects_what_arrives() -> None:
    """600 rounds against the plan's rehearsal of 240: false alarms below 1e-5."""
    log = Log("paced", epochs=600, weights="client", oldest=3, **PACED)
    counted = [
        job for a, _ in log.rounds for job in a.done if job.load and a.round - job.round <= 3
    ]
    rehearsal = log.state.plan.rehearsal
    for j in range(6):
        mine = np.array([job.load for job in counted if job.client == j])
        spread = 6 * np.sqrt(600 * (rehearsal.answers[j] + 0.02) * (1 + 600 / 240))
        assert abs(len(mine) - 600 * rehearsal.answers[j]) < spread
        assert mine.mean() == pytest.approx(rehearsal.points[j] / rehearsal.answers[j], rel=0.25)


def made_ask(run: Log) -> Any:
    return run.setting.scheme.ask(replace(run.state, round=0))


def test_a_cap_bounds_what_a_point_counts() -> None:
    log = Log("paced", cap=1.5, **PACED)
    plan, held = log.state.plan, log.held
    weights, uncapped = (
        made_ask(run).work.class_weights for run in (log, Log("paced", cap=1e9, **PACED))
    )
    average = held.sum() / plan.rehearsal.points.sum()
    assert weights.max() == pytest.approx(1.5 * average)
    np.testing.assert_allclose(weights, np.minimum(uncapped, 1.5 * average))


def test_paced_plans_again_with_the_noise_of_its_rounds() -> None:
    settings = {"optimiser": "adam", "noise": 1.0}
    fixed, follows = (
        Log("paced", epochs=45, replan=replan, **settings).state.plan for replan in (False, True)
    )
    assert follows.noise_scale > 2 * fixed.noise_scale
    assert follows.variance < fixed.variance
    assert follows.window > fixed.window


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weights": "points"}, r"paced\.weights is 'points'"),
        ({"window": 3.0, "deadline": 2.0}, r"paced\.deadline is 2 s and the window 3 s"),
        ({"cap": 0.5}, r"paced\.cap is 0\.5"),
        ({"shrink": 1.5}, r"paced\.shrink is 1\.5"),
    ],
)
def test_paced_refuses_what_it_cannot_do(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_scheme("paced", settings)


def test_paced_by_class_needs_counts() -> None:
    with pytest.raises(InputError, match="label counts that secure sums hide"):
        make_scheme("paced", {}, secure=True)
    assert [kind.value for kind in make_scheme("paced", {"weights": "client"}).disclosure] == [
        "gradients"
    ]


def test_all_points_are_embedded_before_the_first_window() -> None:
    """Label counts come first, for which nobody embeds: what is missing is a part of the set-up."""
    run = simulation_of({"paced": make_scheme("paced", {"window": 1.0, "deadline": 2.0})})
    (setting,) = play(run).values()
    setups = [record for record in setting.records if record.is_setup]
    needed = setting.state.task.held / setting.timeline.clock.embedding_speed
    assert len(setups) == 2
    assert sum(record.seconds for record in setups) >= needed.max()
