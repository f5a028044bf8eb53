"""What a server received, and what each record contributes to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from codedfedl.arrays import Array, FloatArray, IntArray, Mask, asarray_like, to_host
from codedfedl.audit.records import Records
from codedfedl.core.client import Counts, Embed, Embedded, Gradient, Gram, Prepare, WeightedGradient
from codedfedl.core.clipped import ClippedGradient, ClippedMoments, PrivateSum, clipped
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.encoding import BlockParity, Parity
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import EACH, Inbox, Task
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.learning.codes import Code
from codedfedl.learning.least_squares import point_weights
from codedfedl.privacy.fixed_point import FixedPoint
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.client_data import Problem, SimulatedClient
from codedfedl.simulation.engine import Setting

__all__ = [
    "Contributions",
    "ParityMessage",
    "SumMessage",
    "check_work",
    "contributions",
    "factors",
    "known_sum",
    "messages",
]

_WITHOUT_ANSWER = Prepare | Embed | Counts  # no attack here is on the counts alone
_SUMS = Gradient | Embedded | Gram | PrivateSum


@dataclass(frozen=True, eq=False)
class SumMessage:
    """A sum over records, of one client or of several.

    Attributes
    ----------
    loads : array of shape (n,)
        Points of each client behind it; 0 for clients that do not contribute.
    values : array of shape (a, b)
    sigma
        Standard deviation of the noise on every number.
    """

    work: Work
    loads: IntArray
    model: Array
    values: FloatArray
    sigma: float = 0.0


@dataclass(frozen=True, eq=False)
class ParityMessage:
    """Parity of one client's points: rows of features and targets side by side.

    Attributes
    ----------
    weights : array of shape (points,)
        Of the points of the mini-batch, or of the client's first points if `batch` is None.
    """

    client: int
    batch: int | None
    weights: FloatArray
    code: Code
    values: FloatArray


@dataclass(frozen=True, eq=False)
class Contributions:
    """What records add to a sum: each included record adds ``weight · left ⊗ right``.

    Attributes
    ----------
    which : array of shape (k,)
        Indices of these records among all; the others do not contribute.
    weight, rate : arrays of shape (k,)
        Weight, and the probability of being drawn.
    left, right : arrays of shape (k, a) and (k, b)
    """

    which: IntArray
    weight: FloatArray
    rate: FloatArray
    left: FloatArray
    right: FloatArray


def check_work(work: Work) -> None:
    """Raise `InputError` for work that no attack here covers."""
    if type(work) is Masked:
        if not isinstance(work.work, _SUMS):
            raise InputError(
                f"no attack on a secure sum of {work.work.kind!r} is known here: audit the scheme "
                "without secure, where the server sees more"
            )
        work = work.work
    if work.discloses is Disclosure.RAW:
        raise InputError(
            f"raw points leave the clients for {work.kind!r}: there is nothing left to infer"
        )
    if not isinstance(work, _WITHOUT_ANSWER | _SUMS | Parity | BlockParity):
        raise InputError(
            f"no attack on {work.kind!r} is known here: audit a scheme of sums, gradients or parity"
        )


def messages(
    setting: Setting, exchange: Arrivals, inbox: Inbox, problem: Problem, seed: int
) -> Iterator[SumMessage | ParityMessage]:
    """Yield what the server received: only sums if it sees no more, otherwise every answer."""
    ask, question = exchange.ask, setting.driver.question
    if ask.noise is not None:
        work, loads = ask.work, np.where(exchange.arrived, exchange.loads, 0)
        if isinstance(work, Masked):
            if inbox.sums:
                values = _decoded(work.work, work.decoded(inbox.sums, np.zeros(0)))
                yield SumMessage(work.work, loads, question, values)
            return
        assert isinstance(work, PrivateSum)
        steps = (ask.noise**2 + float(exchange.arrived.sum()) * work.noise**2) ** 0.5
        for name, total in inbox.sums.items():
            values, sigma = _decoded(work, {name: total}), steps / work.scale
            yield SumMessage(replace(work, noise=0.0), loads, question, values, sigma)
        return
    if ask.combine is EACH:
        for reply in inbox.replies:
            its = (reply.client, reply.points, reply.model, reply.arrays)
            yield from _of_client(ask.work, *its, setting.state.task)
        return
    for job in exchange.done:
        client = SimulatedClient(problem.batches, job.client, seed)
        answer = job.work.for_client(job.client).answer(client, job.load, question)
        its = (job.client, job.load, question, answer.arrays)
        yield from _of_client(ask.work, *its, setting.state.task)


def _of_client(
    work: Work, client: int, load: int, model: Array, arrays: Mapping[str, Array], task: Task
) -> Iterator[SumMessage | ParityMessage]:
    """Yield one client's answer."""
    if not arrays or isinstance(work, Counts):
        return
    check_work(work)
    if isinstance(work, Parity):
        its_work = work.for_client(client)
        loads, chances = np.asarray(its_work.loads), np.asarray(its_work.return_probabilities)
        for b, (planned, chance) in enumerate(zip(loads, chances, strict=True)):
            weights = point_weights(int(task.points[b, client]), int(planned), float(chance))
            yield ParityMessage(client, b, weights, work.code, _rows(arrays, b))
    elif isinstance(work, BlockParity):
        weights = np.full(load, (task.held[client] / load) ** 0.5)
        yield ParityMessage(client, None, weights, work.code, _rows(arrays, 0))
    else:
        loads = np.zeros(client + 1, dtype=np.int64)
        loads[client] = load
        yield SumMessage(work, loads, model, _decoded(work, arrays))


def _rows(arrays: Mapping[str, Array], b: int) -> FloatArray:
    pair = [to_host(arrays[f"{name}{b}"]) for name in ("features", "targets")]
    return np.concatenate(pair, axis=1).astype(np.float64)


def _decoded(work: Work, arrays: Mapping[str, Array]) -> FloatArray:
    """Return the numbers of an answer, as a matrix."""
    if isinstance(work, PrivateSum):
        (residues,) = arrays.values()
        values = FixedPoint(work.scale).decode(residues)
        return values if values.ndim == 2 else values[:, None]
    ordered = [
        to_host(arrays[name]) for name in ("hessian", "moment", "gradient") if name in arrays
    ]
    return np.concatenate(ordered, axis=1).astype(np.float64)


def known_sum(message: SumMessage, problem: Problem, seed: int) -> FloatArray:
    """Return what the message would be with these data, without noise."""
    total: FloatArray | None = None
    for j in np.flatnonzero(message.loads).tolist():
        client = SimulatedClient(problem.batches, j, seed)
        answer = message.work.for_client(j).answer(client, int(message.loads[j]), message.model)
        values = _decoded(message.work, answer.arrays)
        total = values if total is None else total + values
    assert total is not None
    return total


def contributions(message: SumMessage, records: Records, held: IntArray) -> Contributions:
    """Return what each record adds to a sum if it is included."""
    work, loads = message.work, np.zeros(len(held), dtype=np.int64)
    loads[: len(message.loads)] = message.loads
    contributing = _contributing(work, records, loads)
    which = np.flatnonzero(contributing)
    chosen = records.take(which)
    weight, rate = np.ones(len(which)), np.ones(len(which))
    for j in np.unique(chosen.client).tolist():
        its_work, its = work.for_client(j), chosen.client == j
        weight[its], rate[its] = _weight_and_rate(its_work, int(held[j]), int(loads[j]))
    left, right = factors(work, chosen, message.model)
    return Contributions(which, weight, rate, left.astype(np.float64), right.astype(np.float64))


def _contributing(work: Work, records: Records, loads: IntArray) -> Mask:
    if isinstance(work, Gradient):
        return np.asarray((records.batch == work.batch) & (records.index < loads[records.client]))
    if isinstance(work, Gram):
        return np.asarray(loads[records.client] > 0)
    return np.asarray(records.position < loads[records.client])


def _weight_and_rate(work: Work, held: int, load: int) -> tuple[float, float]:
    if isinstance(work, PrivateSum):
        return work.weight(held, load), work.rate
    if isinstance(work, WeightedGradient):
        return float(work.weights), 1.0  # type: ignore[arg-type]
    if isinstance(work, Embedded):
        represents = held if work.represents is None else float(work.represents)  # type: ignore[arg-type]
        return represents / load, 1.0
    return 1.0, 1.0


def factors(work: Work, records: Records, model: Array) -> tuple[Array, Array]:
    """Return the two factors of what each record adds, before its weight."""
    features, targets = records.features, records.targets
    if isinstance(work, ClippedMoments):
        x, y = clipped(features, 1.0), clipped(targets, 1.0)
        columns = np.concatenate([x, (x * x).sum(1, keepdims=True), y], axis=1) / 3**0.5
        return columns, np.ones((len(columns), 1))
    if isinstance(work, Gram):
        return features, np.concatenate([features, targets], axis=1)
    residuals = to_host(asarray_like(features, model) @ model) - targets
    if isinstance(work, ClippedGradient):
        return work.across(features) / work.radius, clipped(
            residuals, work.residual
        ) / work.residual
    return features, residuals
