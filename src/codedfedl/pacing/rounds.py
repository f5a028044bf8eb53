"""A round: the plan for it, its outcome, and what is left of it on disk.

A run leaves a file for every round, and what the pacer has learned. To continue is to repeat: the
strategy gets what its rounds gave it before, without asking anybody, so that its own state (the
momentum of a server optimiser, say) is as it was. A round that was not finished is asked again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.archives import read_arrays
from codedfedl.io.files import durable, make_folder, read_json, write_json
from codedfedl.io.names import count_of

__all__ = ["Entry", "NodeReply", "PacingJournal", "Round", "RoundPlan"]

_FORMAT = 1


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


@dataclass(frozen=True)
class Entry:
    """A finished round.

    Attributes
    ----------
    facts
        For tables and pages.
    arrays, metrics
        What a strategy aggregates to the same result as all replies of the round; none if nobody
        answered.
    copies
        How many replies with them it needs.
    """

    facts: dict[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    copies: int = 1


class PacingJournal:
    """The folder of a run.

    Parameters
    ----------
    resume
        Whether to continue the run that is there, if there is one.
    """

    def __init__(self, folder: str | Path, *, resume: bool) -> None:
        self.folder = Path(folder)
        self.rounds, self._head = self.folder / "journal", self.folder / "paced.json"
        there = self.folder.is_dir() and any(self.folder.iterdir())
        if there and not self._head.is_file():
            raise InputError(f"out {self.folder} holds something else: choose another folder")
        if there and not resume:
            raise InputError(
                f"out {self.folder} holds a run: continue it with resume=True, or choose another"
            )
        make_folder(self.rounds)
        self.document = read_json(self._head, "choose another out") if there else {}
        if there and self.document.get("format") != _FORMAT:
            raise InputError(f"{self._head} is of another version: choose another out")
        if not there:
            self._write()

    def check(self, app: Mapping[str, Any]) -> None:
        """Refuse the run of another app."""
        before = self.document.setdefault("app", dict(app))
        for name, value in app.items():
            if before.get(name) != value:
                raise InputError(
                    f"out {self.folder} is of another app: its {name} differ; choose another"
                )

    def keep_state(self, **states: Any) -> None:
        """Replace what was learned."""
        self.document |= states
        self._write()

    def append(self, number: int, entry: Entry) -> None:
        """Write a round, counted from 1; it is on disk when this returns."""
        texts = {"facts": entry.facts, "metrics": dict(entry.metrics), "copies": entry.copies}
        with durable(self._path(number)) as file:
            np.savez(
                file,
                json=np.array(json.dumps(texts)),
                **{f"arrays/{name}": array for name, array in entry.arrays.items()},  # type: ignore[arg-type]
            )

    def entry(self, number: int, *, arrays: bool = True) -> Entry | None:
        """Read a round; None if it was not finished."""
        path = self._path(number)
        if not path.is_file():
            return None
        stored = read_arrays(path, None if arrays else ("json",), remedy="choose another out")
        try:
            texts = json.loads(str(stored.pop("json")))
            kept = {name.removeprefix("arrays/"): array for name, array in stored.items()}
            return Entry(texts["facts"], kept, texts["metrics"], texts["copies"])
        except Exception as error:  # whatever a damaged file leads to
            raise InputError(f"cannot read {path} ({error}): choose another out") from None

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts of all finished rounds."""
        facts: list[dict[str, Any]] = []
        while (entry := self.entry(len(facts) + 1, arrays=False)) is not None:
            facts.append(entry.facts)
        return facts

    def _path(self, number: int) -> Path:
        return self.rounds / f"{number:06d}.npz"

    def _write(self) -> None:
        write_json(self._head, {"format": _FORMAT, **self.document})
