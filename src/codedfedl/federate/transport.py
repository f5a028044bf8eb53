"""What a federation needs of an engine: to ask nodes, and to gather answers until a deadline."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Say = Callable[[str], None]
"""Tells the operator a sentence."""

Note = Callable[..., None]
"""Keeps an event for programs: of what kind it is, and its facts by name."""

QUIET_SECONDS = 60.0
"""Seconds between two sentences that others can cause at will."""

Arrays = dict[str, npt.NDArray[Any]]
Answered = tuple[dict[str, Any], Arrays]
"""A node's answer to a question: plain facts, and arrays."""


class Answerer(Protocol):
    """Whoever answers the server's questions: a node, or a helper."""

    def answer(self, kind: str, facts: dict[str, Any], arrays: Arrays) -> Answered:
        """Answer a question; `InputError` says why not."""


Status = Literal["answer", "malformed", "problem", "gone", "late"]
"""An answer; a malformed one; a problem of the node; no such node; nothing in time."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """An answer, or why there is none.

    Attributes
    ----------
    question
        The number that `Transport.ask` gave.
    when
        On the transport's clock; ∞ where nothing came.
    reason
        Why there is no answer.
    """

    question: int
    client: int
    status: Status
    when: float = np.inf
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    reason: str = ""


class Transport(Protocol):
    """Carries questions to nodes, and their answers back."""

    def now(self) -> float:
        """Return the time in seconds, on a clock that never goes back."""

    def remaining(self, until: float) -> float:
        """Return how many seconds a computation may take if it must be done by then."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def nodes(self) -> set[int]:
        """Return the nodes that are there, as far as is known."""

    def called(self, node: int) -> str:
        """Return what people call a node before it has greeted."""

    def ask(
        self,
        kind: str,
        questions: Mapping[int, tuple[int, dict[str, Any]]],
        arrays: Arrays,
        seconds: float,
        *,
        at_once: int | None = None,
        largest: int | None = None,
    ) -> dict[int, int]:
        """Send a question to some clients; it expires after so many seconds.

        Parameters
        ----------
        questions
            The node and the facts for each client.
        arrays
            What goes to all of them, such as the model.
        at_once
            How many clients are asked at a time, if answers are large: the next is asked when an
            answer has been processed, and a lost answer is asked for again.
        largest
            The most bytes that the arrays of an answer may have; a larger answer is malformed, and
            is not taken into memory. Any size if None.

        Returns
        -------
        dict
            The client of every question's number.
        """

    def gather(self, wanted: Collection[int], until: float) -> Iterator[Arrival]:
        """Yield answers to these questions as they come; those to others are forgotten.

        Ends when all wanted ones are there, or at `until`; what was there by then is still yielded.
        """


def printable(text: object, most: int = 200) -> str:
    """Return what somebody else wrote in a form that is safe in a log: one line, not too long.

    Of anything but text and errors only the type is named: a rogue may nest lists so deeply that
    they cannot be written.
    """
    if not isinstance(text, str | BaseException):
        text = f"({type(text).__name__})"
    line = " ".join(str(text)[: 4 * most].encode("ascii", "backslashreplace").decode().split())
    return "".join(c for c in line if c.isprintable())[:most]


def quietly(say: Say, clock: Callable[[], float] = time.monotonic) -> Say:
    """Return a way to say sentences: one a minute is passed on, with a count of the others."""
    last, unsaid = -QUIET_SECONDS, 0

    def speak(sentence: str) -> None:
        nonlocal last, unsaid
        unsaid += 1
        if clock() - last >= QUIET_SECONDS:
            more = f", and {unsaid - 1} more since the last" if unsaid > 1 else ""
            say(f"{sentence}{more}")
            last, unsaid = clock(), 0

    return speak
