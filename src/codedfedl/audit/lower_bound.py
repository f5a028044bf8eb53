"""An audit: one run with coins per attack, and the lower bound on ε that its guesses prove.

A fair coin decides for each of m records whether it is in a data set. An attacker who sees the
output of a mechanism guesses some of the coins. If the mechanism is (ε, δ)-DP, the number of right
guesses is dominated by a binomial with probability e^ε/(e^ε + 1), up to δ (Steinke, Nasr and
Jagielski 2023, Theorem 5.2): too many right guesses refute the ε. Nothing is assumed of how the
guesses came about.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, inf
from typing import Any

import numpy as np
from scipy import stats

from codedfedl.arrays import FloatArray, IntArray, Mask
from codedfedl.audit.attacks import KnowsAllElse, KnowsThePopulation
from codedfedl.audit.messages import check_work, messages
from codedfedl.audit.records import Records, crafted, first_slots, planted, random_slots, real
from codedfedl.core.protocol import Inbox
from codedfedl.errors import InputError
from codedfedl.random import stream
from codedfedl.simulation.assignments import Arrivals
from codedfedl.simulation.client_data import Problem
from codedfedl.simulation.engine import Contender, Setting, Simulation

_LARGEST = 64.0  # an ε that no number of guesses refutes
_STEPS = 40

LEAST_CANARIES = 1000
LEAST_NON_MEMBERS = 10_000
RECORDS = 36_000
"""Of these, enough are left out even if clients embed only half of their points."""

CONFIDENCE = 0.95
_DEFAULT_DELTA = 1e-5  # It is used where a scheme claims no guarantee.
_MAX_PLAIN_ROUNDS = 8  # Without noise, further rounds would repeat what is known.
_GUESSED_SHARES = (0.1, 0.5)  # These shares are fixed before any score is known.


@dataclass(frozen=True)
class Guesses:
    """How many guesses an attack made, and how many were right.

    Attributes
    ----------
    records
        m, all that had a coin.
    made, right
        Guesses that were made; all others are abstentions.
    """

    records: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.records:
            raise InputError(
                f"{self.right} right guesses of {self.made} about {self.records} records: each "
                "must be at most the next"
            )


def guess(scores: FloatArray, included: Mask, count: int) -> Guesses:
    """Guess that the records with the highest scores were in, and those with the lowest were not.

    Parameters
    ----------
    count
        How many guesses to make, half of them each way. It must not depend on the scores.
    """
    half, order = count // 2, np.argsort(scores, kind="stable")
    right = included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum()
    return Guesses(len(scores), 2 * half, int(right))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of so many right guesses under (ε, δ)-DP.

    With B ~ Binomial(made, e^ε/(e^ε + 1)) it is P(B ≥ v) + 2·m·δ·max_i P(v − i ≤ B < v)/i.
    """
    chance = 1 / (1 + exp(-epsilon))
    beyond = float(stats.binom.sf(guesses.right - 1, guesses.made, chance))
    if delta == 0 or guesses.right == 0:
        return min(beyond, 1.0)
    below = stats.binom.pmf(np.arange(guesses.right - 1, -1, -1), guesses.made, chance)
    slack = float((np.cumsum(below) / np.arange(1, guesses.right + 1)).max())
    return min(beyond + 2 * guesses.records * delta * slack, 1.0)


def epsilon_bound(
    guesses: Guesses | Sequence[Guesses], delta: float, confidence: float = 0.95
) -> float:
    """Return the largest ε that the guesses refute; 0 where they refute none.

    Of several sets of guesses the best counts, and each has a share of the allowed error.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}: must lie between 0 and 1, such as 0.95")
    sets = [guesses] if isinstance(guesses, Guesses) else list(guesses)
    return max(_refuted(part, delta, (1 - confidence) / len(sets)) for part in sets)


def _refuted(guesses: Guesses, delta: float, error: float) -> float:
    low, high = 0.0, _LARGEST
    if guesses.made == 0 or p_value(guesses, 0.0, delta) >= error:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(guesses, middle, delta) < error else (low, middle)
    return low


def area(scores: FloatArray, included: Mask) -> float:
    """Return the area under the ROC curve: 0.5 is chance, 1 identifies all members."""
    ranks = stats.rankdata(scores)
    members, others = int(included.sum()), int((~included).sum())
    return float((ranks[included].sum() - members * (members + 1) / 2) / (members * others))


def true_positives(scores: FloatArray, included: Mask, false_positives: float = 1e-3) -> float:
    """Return the share of members above a threshold that few non-members are above."""
    others = np.sort(scores[~included])[::-1]
    allowed = int(false_positives * len(others))
    return float((scores[included] > others[allowed]).mean())


_CANARIES, _RECORDS = 0, 1  # streams of coins


@dataclass(frozen=True)
class Attacked:
    """How well members were distinguished from non-members.

    Attributes
    ----------
    records, non_members
        Records that could affect what was received, and how many of them were left out.
    guesses
        One or several sets, their sizes fixed beforehand.
    area, true_positives
        Under the ROC curve; at 0.1% false positives.
    epsilon
        Lower bound, at half of the allowed error probability.
    """

    records: int
    non_members: int
    guesses: tuple[Guesses, ...]
    area: float
    true_positives: float
    epsilon: float


@dataclass(frozen=True)
class Audit:
    """What an audit found of one setting.

    Attributes
    ----------
    claimed
        The ε of the scheme; ∞ where it claims none.
    epsilon
        Lower bound at the confidence of both attacks together.
    """

    setting: str
    seed: int
    claimed: float
    delta: float
    confidence: float
    canaries: Attacked
    membership: Attacked

    @property
    def epsilon(self) -> float:
        """The larger of both bounds."""
        return max(self.canaries.epsilon, self.membership.epsilon)

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, at this confidence."""
        return self.epsilon > self.claimed

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        claimed = self.claimed if self.claimed < inf else None
        return asdict(self) | {"claimed": claimed, "epsilon": self.epsilon, "refuted": self.refuted}


def audit(
    problem: Problem,
    entry: Contender,
    seed: int,
    *,
    canaries: int = LEAST_CANARIES,
    records: int = RECORDS,
    least_non_members: int = LEAST_NON_MEMBERS,
) -> Audit:
    """Run one setting twice, with canaries and with coins for real records, and attack it.

    Parameters
    ----------
    problem
        The data as they are; the setting trains on copies in which some records are replaced.
    canaries, records
        How many crafted and real records have a coin.
    least_non_members
        With fewer non-members, a false-positive rate of 0.1% cannot be measured.
    """
    state = entry.scheme.start(entry.task, entry.fleet, None)
    described = entry.scheme.describe(state)
    account = described.account
    claimed = inf if account is None else account.epsilon
    delta = _DEFAULT_DELTA if account is None else account.delta
    held = entry.task.held
    order, room = _heaviest(described.plan, held, canaries)
    rng = stream(seed, "audit", _CANARIES)
    slots = first_slots(problem.batches, canaries, order, room)
    made = crafted(problem.batches, slots, rng)
    first = _attacked(problem, entry, seed, made, rng, delta, KnowsAllElse)
    rng = stream(seed, "audit", _RECORDS)
    drawn = real(problem.batches, random_slots(problem.batches, records, rng))
    second = _attacked(problem, entry, seed, drawn, rng, delta, KnowsThePopulation)
    if second.non_members < least_non_members:
        raise InputError(
            f"{second.non_members} of {records} records were left out of what reached the server, "
            f"and 0.1% of false positives needs {least_non_members}: raise --records, or take "
            "larger data"
        )
    return Audit(entry.label, seed, claimed, delta, CONFIDENCE, first, second)


def _heaviest(plan: Any, held: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Return the order in which clients get canaries, and how many each can hold.

    A guarantee must hold for the most exposed record. If a plan says which clients hold it, the
    canaries go there, on half of the points that a client processes. Otherwise every client gets
    some.
    """
    weights = getattr(plan, "exposures", None)
    if weights is None:
        return np.arange(len(held)), np.minimum(held, -(-count // len(held)))
    order = np.argsort(-weights, kind="stable")
    room = np.asarray(plan.loads) // 2
    if room.sum() < count:
        room = np.asarray(plan.loads)
    return order, room


def _attacked(
    problem: Problem,
    entry: Contender,
    seed: int,
    records: Records,
    rng: np.random.Generator,
    delta: float,
    attacker: type[KnowsAllElse] | type[KnowsThePopulation],
) -> Attacked:
    """Run once with a coin for every record, and guess the coins."""
    included = rng.random(len(records)) < 0.5
    here = planted(problem, records, included)
    attack = attacker(here, records, seed)
    plain = 0

    def listen(setting: Setting, exchange: Arrivals, inbox: Inbox) -> None:
        nonlocal plain
        check_work(exchange.ask.work)
        is_plain = not exchange.ask.noise and not getattr(exchange.ask.work, "noise", 0.0)
        if is_plain and not exchange.ask.setup:
            plain += 1
            if plain > _MAX_PLAIN_ROUNDS:
                return
        for message in messages(setting, exchange, inbox, here, seed):
            attack.observe(message)

    simulation = Simulation(here, [entry], seed, listen)
    for _ in simulation.run():
        if plain >= _MAX_PLAIN_ROUNDS:
            break
    if not attack.touched.any():
        raise InputError(
            f"{entry.label}: no record with a coin had a part in what the server received: audit "
            "with more records, or a scheme whose clients answer"
        )
    return _judged(attack.result()[attack.touched], included[attack.touched], delta)


def _judged(scores: FloatArray, included: Mask, delta: float) -> Attacked:
    sizes = [round(share * len(scores)) for share in _GUESSED_SHARES]
    guesses = tuple(guess(scores, included, size) for size in sizes)
    return Attacked(
        records=len(scores),
        non_members=int((~included).sum()),
        guesses=guesses,
        area=area(scores, included),
        true_positives=true_positives(scores, included),
        epsilon=epsilon_bound(guesses, delta, 1 - (1 - CONFIDENCE) / 2),
    )
