"""What a paced run leaves on disk: a file for every round, and what the pacer has learned.

To continue is to repeat: the strategy gets what its rounds gave it before, without asking anybody,
so that its own state (the momentum of a server optimiser, say) is as it was. A round that was not
finished is asked again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder, read_json, write_json

__all__ = ["Entry", "PacingJournal"]

_FORMAT = 1


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
        try:
            with np.load(path, allow_pickle=False) as file:
                texts = json.loads(str(file["json"]))
                names = [name for name in file.files if name != "json"] if arrays else []
                kept = {name.removeprefix("arrays/"): file[name] for name in names}
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
