"""`fedavg`: several local steps on each client, and the mean of the models; and what refines it.

`fedprox`: local steps that are pulled back to the round's model (Li et al., MLSys 2020).

`fedadam` and `fedyogi`: local steps, and an adaptive optimiser at the server (Reddi et al., ICLR
2021). What the models have moved on average is taken for a gradient. With β₁ = 0.9, β₂ = 0.99 and
ε = 0.001, and without a correction of the first means, as published.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from codedfedl.arrays import Array
from codedfedl.core.client import LocalModel
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.protocol import AnyLimits, Ask, Inbox, Info, Rng, Scheme, Task
from codedfedl.core.task import Descent
from codedfedl.core.waiting import Everyone, Fastest, Until, Wait
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.fleet.delays import DelayModel
from codedfedl.learning.optimisers import optimiser
from codedfedl.schemes.settings import all_but_slowest, check_at_least_1, check_drop, check_positive


@dataclass(frozen=True, eq=False)
class AveragedState(Descent):
    """How long a round waits, in seconds; None: for all."""

    deadline: float | None = None

    def towards(self, mean: Array) -> Any:
        """Return the state after a step along its difference from a mean of local models.

        Plain steps have size 1: the mean itself.
        """
        size = 1.0 if self.is_plain else self.task.step_size(self.round)
        return self.moved_along(self.model - mean, size)


@dataclass(frozen=True)
class FedAvg(Scheme):
    """Federated averaging over all clients, or over those that meet a deadline.

    Parameters
    ----------
    local_steps
        Gradient steps that a client takes on its mini-batch before it answers.
    deadline : seconds, optional
        Wait no longer than this; by default wait for all clients.
    step
        Size of a local step; by default the schedule's, which is often too large for the points
        of a single client.
    points
        Points of a local step, in a new order in every round; by default the whole mini-batch.
    drop
        Share of the clients that a round does not wait for, as in `greedy`.
    proximal
        Strength of a pull back to the model of the round, as in `fedprox`.
    optimiser
        Of the server, which takes what the models have moved for a gradient: ``gd`` takes their
        mean; others have the schedule's step, or `server_step`.
    """

    local_steps: int = 5
    deadline: float | None = None
    step: float | None = None
    points: int | None = None
    drop: float = 0.0
    proximal: float = 0.0
    optimiser: str = "gd"

    info: ClassVar[Info] = Info("fedavg", frozenset({Disclosure.MODELS}))

    def __post_init__(self) -> None:
        check_at_least_1(self, "local_steps")
        check_positive(self, "deadline", "step", "points")
        check_drop(self.info.name, self.drop)
        optimiser(self.info.name, self.optimiser, same_points=False)
        if self.deadline is not None and self.drop:
            raise InputError(
                f"{self.info.name} has a deadline of {self.deadline:g} s and drop = {self.drop:g}: "
                "leave one out"
            )

    def check(self, fleet: DelayModel | None = None, limits: AnyLimits = None) -> None:
        """Refuse steps over fewer points than nodes take."""
        if self.points is not None and limits is not None:
            raise InputError(
                f"{self.info.name}.points is {self.points}, and nodes take steps over whole "
                "mini-batches: leave it out, or simulate"
            )
        super().check(fleet, limits)

    def start(
        self, task: Task, fleet: DelayModel, model: Array, limits: AnyLimits = None, rng: Rng = None
    ) -> AveragedState:
        """Take the operator's deadline where no other is given."""
        deadline = self.deadline or (None if limits is None else limits.deadline)
        chosen = optimiser(self.info.name, self.optimiser, same_points=False)
        return AveragedState(task, model, optimiser=chosen, deadline=deadline)

    def ask(self, state: Any) -> Ask | None:
        """Ask for local steps."""
        if state.finished:
            return None
        task, batch = state.task, state.task.batch(state.round)
        size = task.step_size(state.round, self.step)
        return Ask(self._work(state, batch, size), self._wait(state), task.points[batch])

    def _wait(self, state: Any) -> Wait:
        if state.deadline is not None:
            return Until(state.deadline)
        slowest: Fastest = all_but_slowest(self.drop, state.task.clients)
        return slowest if self.drop else Everyone()

    def _work(self, state: Any, batch: int, size: float) -> Work:
        return LocalModel(batch, self.local_steps, size, state.task.ridge, **self._steps_of(state))

    def _steps_of(self, state: Any) -> dict[str, Any]:
        """Return what else local steps need."""
        return {"points": self.points, "proximal": self.proximal, "draw": state.round}

    def receive(self, state: Any, inbox: Inbox) -> Any:
        """Move to the mean of the models that arrived; keep the old one if none did."""
        mean = inbox.total("model") / inbox.points if inbox.points else state.model
        return state.towards(mean)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Federated averaging with ½μ‖β − β₀‖² in the loss of every client.

    Parameters
    ----------
    proximal
        μ.
    local_steps, deadline, step, points, drop, optimiser
        As of `FedAvg`.
    """

    proximal: float = 0.01

    info: ClassVar[Info] = replace(FedAvg.info, name="fedprox")


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """Federated averaging with Adam at the server.

    Parameters
    ----------
    optimiser, local_steps, deadline, step, points, drop, proximal
        As of `FedAvg`; the server's step is the schedule's, or `server_step`.
    """

    optimiser: str = "adam-uncorrected"

    info: ClassVar[Info] = replace(FedAvg.info, name="fedadam")


@dataclass(frozen=True)
class FedYogi(FedAvg):
    """Federated averaging with Yogi at the server.

    Parameters
    ----------
    optimiser, local_steps, deadline, step, points, drop, proximal
        As of `FedAdam`.
    """

    optimiser: str = "yogi-uncorrected"

    info: ClassVar[Info] = replace(FedAvg.info, name="fedyogi")
