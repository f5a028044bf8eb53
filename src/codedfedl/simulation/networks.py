"""What clients answer about networks, of many clients at once; and which answer broke one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, IntArray
from codedfedl.core.client import LocalModel
from codedfedl.core.gradients import PointGradient, Terms
from codedfedl.core.protocol import Scheme, State
from codedfedl.core.rounded import Rounded
from codedfedl.core.work import Answer, Client, Work

__all__ = ["NetworkJob", "answers", "breakdown", "is_broken", "joined", "summed_gradient"]

SHORTER_STEP = 0.1
"""Of the step, which a run whose numbers overflowed is advised to try."""


class NetworkJob(NamedTuple):
    """What a client is to answer: `work` is its own part."""

    work: Work
    client: Client
    load: int
    model: Array


def answers(jobs: Sequence[NetworkJob]) -> list[Answer]:
    """Return the answers to jobs: gradients together, and local steps of one kind together."""
    made: dict[int, Answer] = {}
    groups: dict[Any, list[int]] = {}
    for k, job in enumerate(jobs):
        groups.setdefault(_group(job), []).append(k)
    for (_, way, *_), members in groups.items():
        made |= zip(members, way([jobs[k] for k in members]), strict=True)
    return [
        job.work.rounded(made[k], job.client, job.model)
        if isinstance(job.work, Rounded)
        else made[k]
        for k, job in enumerate(jobs)
    ]


def _plain(job: NetworkJob) -> Any:
    return job.work.work if isinstance(job.work, Rounded) else job.work


def _group(job: NetworkJob) -> tuple[Any, ...]:
    """Return the learner, and how the jobs of a group are done together."""
    work, learner = _plain(job), job.client.learner
    if type(work).answer is PointGradient.answer:
        return (learner, _gradients)
    if type(work).answer is LocalModel.answer:
        return (learner, _trained, *work.how.values())
    return (learner, _one_by_one)


def _gradients(jobs: Sequence[NetworkJob]) -> list[Answer]:
    parts = [joined(list(_plain(job).terms(job.client, job.load))) for job in jobs]
    features, targets, _, weights = zip(*parts, strict=True)
    gradients = jobs[0].client.learner.many_gradients(_models(jobs), features, targets, weights)
    return [Answer(job.load, {"gradient": g}) for job, g in zip(jobs, gradients, strict=True)]


def _trained(jobs: Sequence[NetworkJob]) -> list[Answer]:
    points, counts, rngs = zip(
        *(_plain(job).stepped_on(job.client, job.load) for job in jobs), strict=True
    )
    features, targets = zip(*points, strict=True)
    learner, how = jobs[0].client.learner, _plain(jobs[0]).how
    after = learner.many_steps(_models(jobs), features, targets, counts=counts, rngs=rngs, **how)
    return [
        _plain(job).of_trained(model, job.model, job.load)
        for job, model in zip(jobs, after, strict=True)
    ]


def _one_by_one(jobs: Sequence[NetworkJob]) -> list[Answer]:
    return [_plain(job).answer(job.client, job.load, job.model) for job in jobs]


def _models(jobs: Sequence[NetworkJob]) -> Array:
    return array_namespace(jobs[0].model).stack([job.model for job in jobs])


def summed_gradient(
    work: Any, model: Array, client: Callable[[int], Client], loads: IntArray
) -> Mapping[str, Array]:
    """Return the sum of the clients' answers to a `PointGradient`: one weighted pass for all."""
    parts: list[Terms] = []
    for j in np.flatnonzero(loads > 0).tolist():
        parts += work.for_client(j).terms(client(j), int(loads[j]))
    return {"gradient": joined(parts).gradient(client(0).learner, model)} if parts else {}


def joined(parts: Sequence[Terms]) -> Terms:
    """Return the points of all parts, each with its weight."""
    xp = array_namespace(parts[0].targets)
    weights = [
        xp.full(part.targets.shape[:1], part.factor, dtype=xp.float32, device=part.targets.device)
        if part.weights is None
        else part.factor * part.weights
        for part in parts
    ]
    columns = ([part.features for part in parts], [part.targets for part in parts], weights)
    features, targets, by_point = (xp.concat(column, axis=0) for column in columns)
    return Terms(features, targets, weights=by_point)


def is_broken(state: State) -> bool:
    """Whether a network has numbers that are not finite: nothing more can be learned."""
    return not state.task.learner.quadratic and not _finite(state.model)


def breakdown(
    scheme: Scheme, state: State, names: Sequence[str], jobs: Sequence[NetworkJob]
) -> str:
    """Say in which round a network broke, whose answer was the first that did, and what to try.

    Parameters
    ----------
    names, jobs
        Of the clients whose answers counted in the last round.
    """
    made = zip(names, answers(jobs), strict=True)
    broken = [name for name, a in made if not all(map(_finite, a.arrays.values()))]
    where = f"the network is not finite after round {state.round}"
    if broken:
        where += f", in which client {broken[0]}'s answer was the first that was not"
    fields = {
        f"{scheme.info.name}.step": getattr(scheme, "step", None),
        f"{scheme.info.name}.server_step": scheme.server_step,
        "training.step": state.task.schedule.step,
    }
    field, size = next((field, size) for field, size in fields.items() if size is not None)
    return f"{where}: it stops; try {field} = {SHORTER_STEP * size:g}"


def _finite(array: Array) -> bool:
    return bool(array_namespace(array).all(array_namespace(array).isfinite(array)))
