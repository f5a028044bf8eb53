"""How a federation starts from its run directory: the same live, resumed and replayed."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import Array, FloatArray, IntArray
from codedfedl.core.disclosure import needs_helper
from codedfedl.core.gradients import block_ends
from codedfedl.core.loop import refuse_learner
from codedfedl.core.masked import refuse_unbounded
from codedfedl.core.protocol import Limits, Scheme, State, Task
from codedfedl.core.task import workload_of
from codedfedl.errors import InputError
from codedfedl.fitting.fit import Fit, fit
from codedfedl.fitting.traces import read_traces, without_minority
from codedfedl.fleet.delays import Chances, DelayModel
from codedfedl.learning.learner import Learner
from codedfedl.learning.optimisers import Schedule
from codedfedl.privacy.fixed_point import LEAST_SUMMED
from codedfedl.random import stream
from codedfedl.runs.config import Experiment
from codedfedl.runs.federation_sections import FederationConfig
from codedfedl.runs.journal import Journal, Members
from codedfedl.schemes import scheme_class


def federation_config(experiment: Experiment) -> FederationConfig:
    """Return the federation's settings, or say why the experiment is not a federation."""
    if experiment.federation is None:
        raise InputError("the experiment has no [federation] table: add one with clients = …")
    if len(experiment.schemes) != 1 or len(experiment.seeds) != 1:
        raise InputError("a federation has one scheme and one seed: leave out the others")
    if experiment.grid:
        raise InputError("a federation runs one setting: leave out [grid]")
    if experiment.federation.scale and experiment.data.text is not None:
        raise InputError("federation.scale is true, and texts have no scale: leave it out")
    _ = federation_schedule(experiment)  # refuses what needs all data in one place
    return experiment.federation


def federation_schedule(experiment: Experiment) -> Schedule:
    """Return the step sizes; those of a scheme that takes none are infinite where not given."""
    chosen = experiment.schemes[0]
    features = experiment.feature_map()
    if experiment.training.step == "auto" and not scheme_class(chosen.name).info.descends:
        return Schedule(np.inf)
    return experiment.schedule(features)


def scheme_of(experiment: Experiment) -> Scheme:
    """Return the scheme, if it can be trained in the limits that the federation sets."""
    config, chosen = federation_config(experiment), experiment.schemes[0]
    scheme = chosen.scheme()
    scheme.check(limits=_limits(config))
    if getattr(scheme, "load", None) is not None and not scheme.info.in_blocks:
        raise InputError(
            f"{chosen.name}.load is for points that are drawn for every answer, which nodes do not "
            "do: leave it out, or simulate"
        )
    refuse_learner(scheme, experiment.model.learner(1, 2, classes=True, image=None))
    if needs_helper(scheme.disclosure):
        _check_sums(config)
        refuse_unbounded(experiment.feature_map().largest_square)
    return scheme


def _limits(config: FederationConfig, first_deadline: float | None = None) -> Limits:
    """Return what the operator sets, with the deadline of the first rounds if it is planned."""
    return Limits(
        config.deadline, config.setup_timeout, config.rounds, config.availability, first_deadline
    )


def _check_sums(config: FederationConfig) -> None:
    """Refuse what would show a client's own answer."""
    if config.clients < LEAST_SUMMED:
        raise InputError(
            f"federation.clients is {config.clients}: a sum would be one client's own answer; have "
            f"{LEAST_SUMMED} or more"
        )
    if config.scale:
        raise InputError(
            "federation.scale is true, which shows the server each client's own means and "
            "variances, where the scheme discloses sums alone: scale by public constants instead"
        )


def federation_task(experiment: Experiment, members: Members) -> Task:
    """Return the public facts of the training task."""
    training, batches = experiment.training, experiment.data.batches
    features, learner = experiment.feature_map(), federation_learner(experiment, members)
    # As `mini_batches` deals them, without a list of all points.
    sizes = [[n // batches + (b < n % batches) for n in members.points] for b in range(batches)]
    rounds = federation_config(experiment).rounds
    return Task(
        workload=workload_of(learner, learner.inputs, learner.outputs),
        feature_macs=features.macs(members.inputs),
        points=np.array(sizes),
        epochs=max(training.epochs, -(-rounds // batches)),
        schedule=federation_schedule(experiment),
        ridge=experiment.ridge(int(np.sum(members.points))),
        largest_square=features.largest_square,
        learner=learner,
    )


def federation_learner(experiment: Experiment, members: Members) -> Learner:
    """Return what the nodes train."""
    return experiment.model.learner(
        experiment.feature_map().size(members.inputs),
        members.columns,
        classes=members.classes,
        image=experiment.features.image,
    )


def first_model(task: Task, seed: int) -> npt.NDArray[np.float32]:
    """Return the model that a federation begins with: a simulation's with the same seed."""
    return np.asarray(task.learner.start(stream(seed, "model")))


def fitted(journal: Journal, members: Members) -> Fit:
    """Fit the delays of the clients, in their order, to how they were measured."""
    points = dict(zip(members.names, members.points, strict=True))
    estimates = fit(read_traces(journal.traces), points)
    if estimates.fleet.client.astype(str).tolist() != members.names:
        raise InputError(f"{journal.traces} is not about the members, in their order: delete it")
    return estimates


def start(
    scheme: Scheme, experiment: Experiment, members: Members, measured: Fit, model: Array
) -> State:
    """Plan; no client is assumed to be more reliable or faster than the configuration says.

    An engine's own delays follow no formula, so a scheme plans with the measurements if it can. A
    scheme that uses late answers may plan rounds in which hardly any client answers in time; these
    are made long enough for most clients. A slow minority sets no deadline (`fitting.traces`).
    """
    config, by_most = federation_config(experiment), _by_most(measured)
    state = _started(scheme, experiment, members, by_most, model, margin=config.margin)
    described = scheme.describe(state)
    if described.planned_deadline is None:  # it is given, or there is none
        return _started(scheme, experiment, members, measured, model)
    deadline = planned = described.planned_deadline
    if hasattr(described.plan, "round_deadline"):
        deadline = max(planned, config.margin * _typical_seconds(measured))
    if by_most is measured and deadline == planned:
        return state
    if described.plan is None:  # whoever plans windows waits for no slow minority
        return _started(scheme, experiment, members, measured, model, margin=config.margin)
    return _started(scheme, experiment, members, measured, model, first_deadline=deadline)


def _by_most(measured: Fit) -> Fit:
    """Return the fit as if no minority were much slower than all others."""
    traces = without_minority(measured.traces)
    return measured if traces is measured.traces else fit(traces, measured.fleet.points)


def _typical_seconds(estimates: Fit) -> float:
    """Return the median over clients of each client's median probe time; 0 if none answered."""
    clients, seconds = estimates.traces.client, estimates.traces.seconds
    came = np.isfinite(seconds)
    medians = [
        np.median(seconds[came & (clients == client)]) for client in np.unique(clients[came])
    ]
    return float(np.median(medians)) if medians else 0.0


def _started(
    scheme: Scheme,
    experiment: Experiment,
    members: Members,
    measured: Fit,
    model: Array,
    *,
    margin: float = 1.0,
    first_deadline: float | None = None,
) -> State:
    task = scheme.own_task(federation_task(experiment, members))
    config = federation_config(experiment)
    limits, rng = _limits(config, first_deadline), stream(experiment.seeds[0], "scheme")
    blocks = np.array([block_ends(int(held))[0] for held in task.points.max(0)])
    limits = replace(limits, blocks=blocks)
    if scheme.info.any_delays:
        delays = _Cautious(measured.measured, config.availability, margin)
        return scheme.start(task, delays, model, limits, rng)
    fleet = measured.fleet
    sure = np.minimum(fleet.availability, config.availability)
    slower = {"rate": fleet.rate / margin, "overhead": fleet.overhead * margin}
    return scheme.start(task, replace(fleet, availability=sure, **slower), model, limits, rng)


@dataclass(frozen=True)
class _Cautious(DelayModel):
    """A delay model with a margin: availability is capped, and all times are scaled by a factor."""

    model: DelayModel
    share: float
    margin: float

    @property
    def client(self) -> npt.NDArray[Any]:  # type: ignore[override]
        return self.model.client

    def cdf(self, loads: npt.ArrayLike, t: npt.ArrayLike) -> FloatArray:
        earlier = np.asarray(t, dtype=np.float64) / self.margin
        return np.minimum(self.model.cdf(loads, earlier), self.share)

    def draw(self, rounds: int, rng: np.random.Generator) -> Chances:
        return self.model.draw(rounds, rng)

    def seconds(self, loads: npt.ArrayLike, chance: Chances) -> FloatArray:
        return self.margin * self.model.seconds(loads, chance)

    def points_within(self, window: npt.ArrayLike, chance: Chances) -> IntArray:
        shorter = np.asarray(window, dtype=np.float64) / self.margin
        return self.model.points_within(shorter, chance)

    def take(self, clients: IntArray | slice) -> "_Cautious":
        return replace(self, model=self.model.take(clients))
