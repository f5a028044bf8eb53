"""A round: the plan for it, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from codedfedl.io.names import count_of

__all__ = ["NodeReply", "Round", "RoundPlan"]


@dataclass(frozen=True)
class RoundPlan:
    """What to do in a round.

    Attributes
    ----------
    ask, busy
        Nodes to ask, and those that still work on an earlier question.
    deadline
        Seconds; ∞: until all have answered (new nodes are among them).
    windows
        Seconds of computing, of nodes that should not do all of their work.
    gain
        Expected progress per second over waiting for all.
    why
        The reason for the deadline, in words.
    """

    ask: tuple[Any, ...]
    busy: tuple[Any, ...]
    deadline: float
    windows: Mapping[Any, float]
    gain: float
    why: str


@dataclass
class NodeReply:
    """An answer in a round.

    Attributes
    ----------
    seconds
        Since its question.
    examples
        The weight of the node.
    share, compute
        Which part of a full pass it did, and seconds of it; None: not reported.
    length
        The norm of its update; None: not known.
    asked, late
        The round of its question, and how many rounds ago that was.
    factor
        By which its update counts: 0 if it does not.
    tag
        Whatever the caller gave.
    """

    node: Any
    seconds: float
    examples: float
    share: float | None = None
    compute: float | None = None
    length: float | None = None
    asked: int = 0
    late: int = 0
    factor: float = 0.0
    tag: Any = None


@dataclass
class Round:
    """A round and its outcome.

    Attributes
    ----------
    seconds
        How long it lasted.
    answers
        All that came, late ones of earlier rounds too.
    counted
        Those that count.
    missing, lost
        Nodes that were asked and did not answer in time; those that failed.
    capped
        Nodes whose 1/π is cut to the cap: their data count for less than they should.
    waiting
        How long waiting for all would have taken, as far as that is known.
    """

    number: int
    plan: RoundPlan
    began: float
    seconds: float = 0.0
    answers: list[NodeReply] = field(default_factory=list)
    missing: list[Any] = field(default_factory=list)
    lost: list[Any] = field(default_factory=list)
    capped: list[Any] = field(default_factory=list)
    waiting: float = 0.0

    @property
    def counted(self) -> list[NodeReply]:
        """The answers that count."""
        return [answer for answer in self.answers if answer.factor > 0]

    @property
    def weights(self) -> list[tuple[NodeReply, float]]:
        """The answers that count, and by what their updates are multiplied in the model."""
        total = sum(answer.examples for answer in self.counted)
        return [(a, a.factor * a.examples / total) for a in self.counted]

    def facts(self) -> dict[str, Any]:
        """Return everything, for JSON: null stands for no deadline."""
        plan = self.plan
        answers = [{k: v for k, v in vars(a).items() if k != "tag"} for a in self.answers]
        return {
            "round": self.number + 1,
            "deadline": plan.deadline if isfinite(plan.deadline) else None,
            "why": plan.why,
            "gain": plan.gain,
            "seconds": self.seconds,
            "waiting": self.waiting,
            "answers": answers,
            "busy": list(plan.busy),
            **{name: list(getattr(self, name)) for name in ("missing", "lost", "capped")},
        }

    def sentence(self) -> str:
        """Return the round in a sentence."""
        plan, in_time = self.plan, sum(1 for a in self.answers if not a.late)
        late = [a.late for a in self.counted if a.late]
        parts = [f"{in_time} of {len(plan.ask)} asked arrived"]
        if late:
            parts.append(f"{len(late)} late counted (up to {count_of(max(late), 'round')} old)")
        for name, nodes in (("late", self.missing), ("failed", self.lost), ("busy", plan.busy)):
            parts += [f"{len(nodes)} {name}"] * bool(nodes)
        if factors := [a.factor for a in self.counted]:
            parts.append(f"weights {min(factors):.3g} to {max(factors):.3g}")
        else:
            parts.append("no answer counts")
        if self.capped:
            parts.append(f"biased: 1/π of {len(self.capped)} nodes is cut to the cap")
        limit = "no deadline" if plan.deadline == inf else f"deadline {plan.deadline:.3g} s"
        return f"{self.seconds:.2f} s, {limit} ({plan.why}); {', '.join(parts)}"
