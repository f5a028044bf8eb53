"""What to change in a federation, from how its clients answered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from codedfedl.core.record import ARRIVED, DROPPED, LATE, NOT_ASKED, Record
from codedfedl.runs.observing import AT_DEADLINE, ended

__all__ = ["Conduct", "advice", "client_advice"]

_SHARE = 0.9  # of the answers that a deadline should bring in
_SLACK = 1.15  # a suggested deadline is longer than what was seen by this factor
_UNKNOWN = 1.5  # factor on the deadline if no answer time is known
_TOO_LONG = 0.7  # a suggested deadline below this share of the present one is worth a change
_OFTEN = 0.5  # share of the rounds in which a client is late, or its answers are refused


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
        found: dict[int, list[float]] = {}
        for record in self.rounds:
            assert record.arrival_times is not None
            for j in np.flatnonzero(record.outcome == ARRIVED).tolist():
                found.setdefault(j, []).append(float(record.arrival_times[j]))
            for j, seconds in record.late_answers:
                found.setdefault(j, []).append(seconds)
        return found

    @cached_property
    def refused(self) -> dict[int, list[str]]:
        """Clients with refused answers in the rounds, and the reasons."""
        found: dict[int, list[str]] = {}
        for record in self.rounds:
            for j, why in record.refusals:
                found.setdefault(j, []).append(why)
        return found

    @cached_property
    def heard(self) -> dict[int, int]:
        """The last round, counted from 1, in which each client was heard of; 0: never."""
        last = dict.fromkeys(range(len(self.names)), 0)
        for place, record in enumerate(self.rounds, start=1):
            last |= dict.fromkeys(record.answered, place)
        return last

    @cached_property
    def overdue(self) -> list[set[int]]:
        """In each round, who had not answered a whole deadline after it was asked.

        A round that ends with enough answers says nothing of the clients that it did not wait for.
        """
        waited, late = np.zeros(len(self.names)), []
        for record in self.rounds:
            asked_before = np.isin(np.arange(len(waited)), record.busy)
            waited = np.where(asked_before, waited, 0.0) + record.seconds
            over = (record.outcome == LATE) & (waited >= AT_DEADLINE * record.deadline)
            late.append(set(np.flatnonzero(over).tolist()))
        return late

    @cached_property
    def missing(self) -> dict[int, int]:
        """Clients from which nothing came in two rounds or more, or never, and since which round.

        Only rounds count in which an answer was due.
        """
        return {
            j: last + 1
            for j, last in self.heard.items()
            if self._silent_rounds(j) >= (2 if last else 1) or self.is_gone(j)
        }

    def _silent_rounds(self, j: int) -> int:
        """Return in how many rounds since a client was last heard of its answer was due."""
        rounds = list(zip(self.rounds, self.overdue, strict=True))[self.heard[j] :]
        return sum(j in late or bool(record.outcome[j] == DROPPED) for record, late in rounds)

    def is_gone(self, j: int) -> bool:
        """Say whether a client was not connected any more in the last round."""
        return self.heard[j] < len(self.rounds) and self.rounds[-1].outcome[j] == DROPPED

    @cached_property
    def in_time(self) -> tuple[int, int]:
        """How many answers came in time, and how many came or were due.

        None is expected of a client after its last sign of life: whether it is slow or gone cannot
        be known. If no client ever showed one, all are expected.
        """
        somebody = any(self.heard.values())
        came = sum(len(record.part("arrived")) for record in self.rounds)
        late = sum(
            place <= self.heard[j] or not somebody
            for place, clients in enumerate(self.overdue, start=1)
            for j in clients
        )
        return came, came + late

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
        return sorted(times)[math.ceil(_SHARE * len(times)) - 1] if times else math.inf

    @property
    def suggested(self) -> float | None:
        """A deadline that nine in ten answers would meet; None before the first round."""
        if not self.rounds or not math.isfinite(self.deadline):
            return None
        if math.isfinite(self.nine_in_ten):
            return _rounded_up(_SLACK * self.nine_in_ten)
        return _rounded_up(_UNKNOWN * self.deadline)

    def late_rounds(self, j: int) -> tuple[int, int]:
        """Return in how many rounds a client was late, and of how many, until it was last heard."""
        last = self.heard[j]
        asked = sum(int(record.outcome[j] != NOT_ASKED) for record in self.rounds[:last])
        return sum(j in clients for clients in self.overdue[:last]), asked


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


def client_advice(conduct: Conduct, killed: Mapping[str, int] | None = None) -> list[str]:
    """Say who never answered, who is gone, late again and again, or refused."""
    if not conduct.rounds:
        return []
    return [*_absent(conduct, killed or {}), *_slow(conduct), *_refused(conduct)]


def _deadline(conduct: Conduct, option: str) -> list[str]:
    deadline, suggested = conduct.deadline, conduct.suggested
    came, asked = conduct.in_time
    if suggested is None or not asked:
        return []
    seconds = conduct.nine_in_ten
    took = f"nine in ten took up to {seconds:.3g} s"
    if not conduct.answer_seconds and math.isfinite(seconds):
        took = f"in the probes they took up to {seconds:.3g} s"
    if came < _SHARE * asked and suggested > deadline:
        met = f"{came} of {asked} answers" if came else "nobody"
        how = took if math.isfinite(seconds) else "how long the others took is not known"
        count = sum(len(record.late_answers) for record in conduct.rounds)
        later = f", and {count} counted in a later round" if count else ""
        return [
            f"{met} met the deadline of {deadline:.3g} s{later}; {how}: try {option} {suggested:g}"
        ]
    longest = max((max(each) for each in conduct.answer_seconds.values()), default=math.inf)
    waited = [record for record in conduct.rounds if ended(record) == "until the deadline"]
    enough = _rounded_up(_SLACK * longest) if math.isfinite(longest) else math.inf
    if len(waited) > _OFTEN * len(conduct.rounds) and enough < _TOO_LONG * deadline:
        return [
            f"{len(waited)} of {len(conduct.rounds)} rounds lasted until the deadline of "
            f"{deadline:.3g} s, and every answer that came was there within {longest:.3g} s: try "
            f"{option} {enough:g}"
        ]
    return []


def _absent(conduct: Conduct, killed: Mapping[str, int]) -> list[str]:
    told = [
        f"{name} was killed after round {after}, as --kill said" for name, after in killed.items()
    ]
    if not any(conduct.heard.values()):
        return told
    for j, first in conduct.missing.items():
        name = conduct.names[j]
        if name in killed:
            continue
        since = f"has not answered since round {first}" if first > 1 else "never answered"
        state = ", and is not connected" if conduct.is_gone(j) else ""
        told.append(
            f"{name} {since}{state}: see its log and start it again with the same key and cache, "
            f"or continue with federation.without={[name]}"
        )
    return told


def _slow(conduct: Conduct) -> list[str]:
    """Name clients that are late again and again where others are not."""
    slow = []
    for j, seen in conduct.answer_seconds.items():
        late, asked = conduct.late_rounds(j)
        if late >= max(2, _OFTEN * asked):
            slow.append((conduct.names[j], late, asked, float(np.median(seen))))
    if len(slow) > len(conduct.answer_seconds) / 2:  # then it is the deadline, not the clients
        return []
    return [
        f"{name} was late in {late} of {asked} rounds; its answers took about {seconds:.3g} s"
        for name, late, asked, seconds in slow
    ]


def _refused(conduct: Conduct) -> list[str]:
    """Name clients whose answers are refused again and again."""
    rounds = len(conduct.rounds)
    return [
        f"answers of {conduct.names[j]} were refused in {len(reasons)} of {rounds} rounds "
        f"({reasons[0]}): see its data, or continue with federation.without={[conduct.names[j]]}"
        for j, reasons in conduct.refused.items()
        if len(reasons) >= max(2, _OFTEN * rounds)
    ]


def _rounded_up(seconds: float) -> float:
    """Return the next number of two significant digits, as people would give it."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / unit - 1e-9) * unit:.2g}")
