"""Answers that clients send once, such as parity: on the server's disk, since they may be large."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.core.loop import RunningSum
from codedfedl.core.protocol import Reply
from codedfedl.core.record import SETUP
from codedfedl.io.files import HashedFile, digest, durable, make_folder, write_durably
from codedfedl.learning.parity import ParityRows


class StoredAnswers:
    """A folder with one folder for each client: its arrays, and their hashes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def points(self) -> dict[int, int]:
        """For how many points each answer stands, by client."""
        paths = sorted(self.folder.glob("*/points"))
        return {int(path.parent.name): int(path.read_text().split()[0]) for path in paths}

    def keep(self, client: int, arrays: Mapping[str, npt.NDArray[Any]], points: int) -> None:
        """Write an answer to the disk: it need not stay in memory."""
        folder = self.folder / str(client)
        make_folder(folder)
        lines = [str(points)]
        for name, array in arrays.items():
            with durable(folder / f"{name}.npy") as file:
                hashed = HashedFile(file)
                np.save(hashed, array)
            lines.append(f"{hashed.digest} {name}.npy")
        write_durably(folder / "points", "\n".join(lines).encode())  # last: marks it as complete
        self.points[client] = points

    def damaged(self) -> Path | None:
        """Return the first file that is not what its client sent, or None."""
        for client in self.points:
            folder = self.folder / str(client)
            for line in (folder / "points").read_text("utf-8").splitlines()[1:]:
                expected, name = line.split(" ", 1)
                path = folder / name
                if not path.is_file() or digest(path.read_bytes()) != expected:
                    return path
        return None

    def answer(self, client: int) -> dict[str, npt.NDArray[Any]]:
        """Return a client's answer, memory-mapped."""
        paths = sorted((self.folder / str(client)).glob("*.npy"))
        return {path.stem: np.load(path, "r") for path in paths}

    def parity(self, client: int, batch: int = 0) -> ParityRows | None:
        """Return a client's parity of a mini-batch, memory-mapped, if all of it is here."""
        folder = self.folder / str(client)
        paths = [folder / f"{name}{batch}.npy" for name in ("features", "targets")]
        if client not in self.points or not all(path.is_file() for path in paths):
            return None
        return ParityRows(*(np.load(path, "r") for path in paths))

    def combined(
        self, clients: Mapping[int, int], *, summed: bool
    ) -> tuple[Mapping[str, Any], tuple[Reply, ...]]:
        """Return the sums of answers, one in memory at a time, or each of them.

        Parameters
        ----------
        clients
            Whose answers, and for how many points they stand.
        """
        each = sorted(clients.items())
        if not summed:
            return {}, tuple(Reply(j, SETUP, points, self.answer(j)) for j, points in each)
        total = RunningSum()
        for j, _ in each:
            total.add(self.answer(j))
        return total.result(), ()
