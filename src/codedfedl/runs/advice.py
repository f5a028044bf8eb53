"""What to change in a federation, from how its clients answered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import IntArray, Mask
from codedfedl.core.record import ARRIVED, AT_DEADLINE, DROPPED, LATE, NOT_ASKED, Record
from codedfedl.io.names import count_of

# The share of the answers that a deadline should bring in.
SHARE_IN_TIME = 0.9

# A suggested deadline is longer than what was seen by this factor.
SLACK = 1.15

# A suggested deadline is longer than the present one by this factor if no time is known.
SLACK_OF_UNKNOWN_TIMES = 1.5

# A suggested deadline below this share of the present one is worth a change.
MAX_SHARE_OF_DEADLINE = 0.7

# The share of the rounds in which a client is late or refused that is worth a sentence.
SHARE_OF_ROUNDS = 0.5


@dataclass(frozen=True, eq=False)
class Conduct:
    """How the clients of a federation have answered so far.

    Parameters
    ----------
    records
        Of all exchanges so far.
    names
        Of the clients.
    probed
        The longest time of each client when it was measured before the first round, in seconds,
        where it is known.
    """

    records: Sequence[Record]
    names: Sequence[str]
    probed: Mapping[str, float]

    @cached_property
    def rounds(self) -> list[Record]:
        """The rounds, without the set-up."""
        return [record for record in self.records if not record.is_setup]

    @property
    def deadline(self) -> float:
        """The deadline of the last round; ∞ before the first."""
        return self.rounds[-1].deadline if self.rounds else math.inf

    @cached_property
    def answer_seconds(self) -> dict[int, list[float]]:
        """Seconds of every answer that arrived, late ones included, by client."""
        seconds: dict[int, list[float]] = {}
        for record in self.rounds:
            assert record.arrival_times is not None
            arrived = np.flatnonzero(record.arrived).tolist()
            times = [(j, float(record.arrival_times[j])) for j in arrived]
            for j, time in (*times, *record.late_answers):
                seconds.setdefault(j, []).append(time)
        return seconds

    @cached_property
    def refused(self) -> dict[int, list[str]]:
        """Clients with refused answers in the rounds, and the reasons."""
        reasons: dict[int, list[str]] = {}
        for record in self.rounds:
            for j, reason in record.refusals:
                reasons.setdefault(j, []).append(reason)
        return reasons

    @cached_property
    def outcome(self) -> npt.NDArray[np.int8]:
        """The outcome of every round for every client, shape (rounds, n)."""
        outcomes = np.array([record.outcome for record in self.rounds], dtype=np.int8)
        return outcomes.reshape(len(self.rounds), len(self.names))

    @cached_property
    def heard(self) -> IntArray:
        """The last round, counted from 1, in which each client answered; 0: never."""
        last = np.zeros(len(self.names), dtype=np.int64)
        for number, record in enumerate(self.rounds, start=1):
            last[list(record.answered)] = number
        return last

    @cached_property
    def alive(self) -> Mask:
        """In each round, who showed a sign of life then or later, shape (rounds, n)."""
        return np.arange(1, len(self.rounds) + 1)[:, np.newaxis] <= self.heard

    @cached_property
    def overdue(self) -> Mask:
        """In each round, who had not answered a whole deadline after it was asked.

        A round that ends with enough answers says nothing of the clients that it did not wait for.
        """
        waited, overdue = np.zeros(len(self.names)), np.zeros(self.outcome.shape, dtype=bool)
        for number, record in enumerate(self.rounds):
            asked_before = np.isin(np.arange(len(waited)), record.busy)
            waited = np.where(asked_before, waited, 0.0) + record.seconds
            overdue[number] = waited >= AT_DEADLINE * record.deadline
        return np.asarray(overdue & (self.outcome == LATE))

    @cached_property
    def gone(self) -> Mask:
        """Clients that were not connected any more in the last round."""
        return np.asarray((self.heard < len(self.rounds)) & (self.outcome[-1] == DROPPED))

    @cached_property
    def missing(self) -> dict[int, int]:
        """Clients from which nothing came in two rounds or more, or never, and since which round.

        Only rounds count in which an answer was due.
        """
        silent = ((self.overdue | (self.outcome == DROPPED)) & ~self.alive).sum(0)
        missing = (silent >= np.where(self.heard > 0, 2, 1)) | self.gone
        return {j: int(self.heard[j]) + 1 for j in np.flatnonzero(missing).tolist()}

    @cached_property
    def in_time(self) -> tuple[int, int]:
        """How many answers came in time, and how many came or were due.

        None is expected of a client after its last sign of life: whether it is slow or gone cannot
        be known. If no client ever showed one, all are expected.
        """
        came = int((self.outcome == ARRIVED).sum())
        late = self.overdue & self.alive if self.heard.any() else self.overdue
        return came, came + int(late.sum())

    @cached_property
    def nine_in_ten(self) -> float:
        """Seconds within which nine in ten answers came, or would have; ∞ where it is not known.

        In a round in which a client was late, it counts with the median of its late answers. If
        nobody answered, the time of the probes counts, if it is longer than the deadline.
        """
        times: list[float] = []
        for j, seen in self.answer_seconds.items():
            late = [seconds for seconds in seen if seconds > self.deadline]
            times += [seconds for seconds in seen if seconds <= self.deadline]
            times += [float(np.median(late)) if late else math.inf] * self.late_rounds(j)[0]
        if not times:
            times = [seconds for seconds in self.probed.values() if seconds > self.deadline]
        if not times:
            return math.inf
        return sorted(times)[math.ceil(SHARE_IN_TIME * len(times)) - 1]

    @property
    def suggested(self) -> float | None:
        """A deadline that nine in ten answers would meet; None before the first round."""
        if not math.isfinite(self.deadline):
            return None
        if math.isfinite(self.nine_in_ten):
            return _rounded_up(SLACK * self.nine_in_ten)
        return _rounded_up(SLACK_OF_UNKNOWN_TIMES * self.deadline)

    def late_rounds(self, j: int) -> tuple[int, int]:
        """Return in how many rounds a client was late, and of how many, until it was last heard."""
        last = self.heard[j]
        asked = self.outcome[:last, j] != NOT_ASKED
        return int(self.overdue[:last, j].sum()), int(asked.sum())


def advice(
    conduct: Conduct, killed: Mapping[str, int] | None = None, option: str = "federation.deadline ="
) -> list[str]:
    """Suggest what to change about the deadline and the clients.

    Parameters
    ----------
    killed
        Clients that were killed on purpose, and after which round.
    option
        How a deadline is given.
    """
    return _deadline(conduct, option) + client_advice(conduct, killed)


def no_better_than_chance(records: Sequence[Record], chance: float | None) -> str:
    """Say what to look at where the model does no better than an answer without inputs."""
    metric = records[-1].metric if records else math.nan
    if chance is None or not metric <= chance:
        return ""
    return (
        f"the model is no better than chance ({metric:.4f} on the test points, and {chance:.4f} "
        "without inputs): see that labels and scales of all nodes and of the test points agree, "
        "and that features.sigma suits the data; under noise, raise epsilon or the points"
    )


def nobody_arrived(records: Sequence[Record]) -> str:
    """Say what to change where no client answered in time in any round; nothing otherwise."""
    rounds = [record for record in records if not record.is_setup]
    if not rounds or any(record.arrived.any() for record in rounds):
        return ""
    late = any((record.outcome == LATE).any() for record in rounds)
    remedy = (
        "raise federation.deadline" if late else "check that the nodes are up, and see their logs"
    )
    return (
        f"no client answered in time in any of {count_of(len(rounds), 'round')}, so the model "
        f"knows only parity at most: {remedy}, and start again"
    )


def client_advice(conduct: Conduct, killed: Mapping[str, int] | None = None) -> list[str]:
    """Say who never answered, who is gone, late again and again, or refused."""
    if not conduct.rounds:
        return []
    return [*_absent(conduct, killed or {}), *_slow(conduct), *_refused(conduct)]


def _deadline(conduct: Conduct, option: str) -> list[str]:
    deadline, suggested, seconds = conduct.deadline, conduct.suggested, conduct.nine_in_ten
    came, asked = conduct.in_time
    if suggested is None or not asked:
        return []
    if came < SHARE_IN_TIME * asked and suggested > deadline:
        met = f"{came} of {asked} answers" if came else "nobody"
        count = sum(len(record.late_answers) for record in conduct.rounds)
        later = f", and {count} counted in a later round" if count else ""
        if not math.isfinite(seconds):
            times = "how long the others took is not known"
        elif conduct.answer_seconds:
            times = f"nine in ten took up to {seconds:.3g} s"
        else:
            times = f"in the probes they took up to {seconds:.3g} s"
        return [
            f"{met} met the deadline of {deadline:.3g} s{later}; {times}: try {option} "
            f"{suggested:g}"
        ]
    if not conduct.answer_seconds:
        return []
    longest = max(max(times) for times in conduct.answer_seconds.values())
    waited = [record for record in conduct.rounds if record.ended == "until the deadline"]
    enough = _rounded_up(SLACK * longest)
    often = len(waited) > SHARE_OF_ROUNDS * len(conduct.rounds)
    if not often or enough >= MAX_SHARE_OF_DEADLINE * deadline:
        return []
    return [
        f"{len(waited)} of {len(conduct.rounds)} rounds lasted until the deadline of "
        f"{deadline:.3g} s, and every answer that came was there within {longest:.3g} s: try "
        f"{option} {enough:g}"
    ]


def _absent(conduct: Conduct, killed: Mapping[str, int]) -> list[str]:
    sentences = [
        f"{name} was killed after round {after}, as --kill said" for name, after in killed.items()
    ]
    if not conduct.heard.any():
        return sentences
    for j, first in conduct.missing.items():
        if (name := conduct.names[j]) not in killed:
            since = f"has not answered since round {first}" if first > 1 else "never answered"
            state = ", and is not connected" if conduct.gone[j] else ""
            sentences.append(
                f"{name} {since}{state}: see its log and start it again with the same key and "
                f"cache, or continue with federation.without={[name]}"
            )
    return sentences


def _slow(conduct: Conduct) -> list[str]:
    """Name clients that are late again and again where others are not."""
    slow = []
    for j, seen in conduct.answer_seconds.items():
        late, asked = conduct.late_rounds(j)
        if late >= max(2, SHARE_OF_ROUNDS * asked):
            slow.append(
                f"{conduct.names[j]} was late in {late} of {asked} rounds; its answers took about "
                f"{np.median(seen):.3g} s"
            )
    # Where most are late, it is the deadline, not the clients.
    return slow if len(slow) <= len(conduct.answer_seconds) / 2 else []


def _refused(conduct: Conduct) -> list[str]:
    """Name clients whose answers are refused again and again."""
    rounds = len(conduct.rounds)
    return [
        f"answers of {conduct.names[j]} were refused in {len(reasons)} of {rounds} rounds "
        f"({reasons[0]}): see its data, or continue with federation.without={[conduct.names[j]]}"
        for j, reasons in conduct.refused.items()
        if len(reasons) >= max(2, SHARE_OF_ROUNDS * rounds)
    ]


def _rounded_up(seconds: float) -> float:
    """Return the next number of two significant digits, as people would give it."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / unit - 1e-9) * unit:.2g}")
