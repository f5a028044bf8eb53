"""How long a server waits, and whose answers count."""

from bisect import bisect_left
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Protocol

import numpy as np

from codedfedl.arrays import FloatArray, Mask


class Wait(Protocol):
    """How long the server waits: until a deadline, or until enough answers are there."""

    @property
    def deadline(self) -> float:
        """Seconds after which nobody is waited for; ∞ if there is no such limit."""

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Say whether the server may continue; once true, it stays true with more answers.

        Parameters
        ----------
        fresh
            Answers to this ask that are there.
        late
            Answers to earlier asks that came since this one.
        expected
            Answers to this ask that will come, sooner or later.
        """


@dataclass(frozen=True)
class Everyone:
    """Until all clients asked have answered, or a deadline in seconds."""

    deadline: float = inf

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Return whether all have answered."""
        return fresh >= expected


@dataclass(frozen=True)
class Fastest:
    """Until `count` of those asked now have answered."""

    count: int
    deadline: ClassVar[float] = inf

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Return whether `count` have answered."""
        return fresh >= self.count


@dataclass(frozen=True)
class Next:
    """Until `count` answers have arrived from now on, to any ask: asynchronous."""

    count: int
    deadline: ClassVar[float] = inf

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Return whether `count` answers have arrived."""
        return fresh + late >= self.count


@dataclass(frozen=True)
class Until:
    """Until a deadline, in seconds."""

    deadline: float

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Return False: the clock decides."""
        return False


@dataclass(frozen=True)
class Limited:
    """As another wait, but up to a deadline: where clients may be absent, and nobody knows who.

    Attributes
    ----------
    asked
        Clients whose answers to this ask are expected.
    """

    wait: Wait
    deadline: float
    asked: int

    def enough(self, fresh: int, late: int, expected: int) -> bool:
        """Return whether the other wait has enough, as if everyone asked would answer."""
        return self.wait.enough(fresh, late, self.asked)


def arrivals(wait: Wait, seconds: FloatArray, fresh: Mask) -> tuple[Mask, float]:
    """Say whose answer counts as arrived, and how long the server waits.

    Parameters
    ----------
    seconds : array of shape (n,)
        When each answer is there; ∞ for a client from which none will come.
    fresh : array of shape (n,)
        Whose answer is to this ask, and not to an earlier one.
    """
    deadline = wait.deadline
    order = np.argsort(seconds, kind="stable")
    order = order[: int(np.isfinite(seconds).sum())]
    new = np.cumsum(fresh[order])
    expected = int(new[-1]) if len(order) else 0

    def enough(count: int) -> bool:
        now = int(new[count - 1]) if count else 0
        return wait.enough(now, count - now, expected)

    needed = bisect_left(range(len(order) + 1), True, key=enough)  # one more if none is enough
    arrived = np.zeros(len(seconds), dtype=bool)
    arrived[order[:needed]] = True
    last = float(seconds[order[min(needed, len(order)) - 1]]) if len(order) and needed else 0.0
    if last <= deadline and (needed <= len(order) or deadline == inf):
        return arrived, last
    return arrived & (seconds <= deadline), deadline
