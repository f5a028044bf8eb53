"""Numbered files: one that is lost, duplicated or changed is always noticed.

Each file holds its number and the hash of the file before it; the first holds the hash of what the
run began with. `head.json` holds the number and hash of the last file, and is written after it: a
kill between the two leaves one file more than it says, never one less. That file is adopted if it
is whole, and the head is written again before the next file; if it is torn, it never was.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from codedfedl.errors import InputError
from codedfedl.io.files import durable, make_folder

__all__ = ["Chain", "Hashing", "Link", "digest"]

Link = tuple[Path, bytes, int, str]
"""A file, its bytes, its number, and the hash of the file before."""


def digest(content: bytes | memoryview) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


class Hashing:
    """A file to write to, and the SHA-256 of what was written: large arrays are not copied."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        """Write some bytes."""
        self._hash.update(content)
        return self._file.write(content)

    @property
    def digest(self) -> str:
        """The hash so far, in hexadecimal digits."""
        return self._hash.hexdigest()


class Chain:
    """The files of a folder, in the order of their numbers.

    Parameters
    ----------
    first
        Returns the hash that the first file holds in place of a previous file's.
    is_whole
        Says whether the content of a file was written to its end.
    """

    def __init__(
        self, folder: Path, first: Callable[[], str], is_whole: Callable[[bytes], bool]
    ) -> None:
        self.folder, self._first, self._is_whole = folder, first, is_whole
        self._last: tuple[int, str] | None = None  # how many files, and the hash of the last
        self._in_head: tuple[int, str] = (0, "")

    @property
    def head(self) -> Path:
        """Where the number and hash of the last file are."""
        return self.folder / "head.json"

    def paths(self) -> list[Path]:
        """Return the files by their names; without a last one that is torn."""
        return self._files()[0]

    def links(self) -> Iterator[Link]:
        """Read all files in order; what is missing, doubled or changed is an error."""
        (paths, count, last), before = self._files(), self._first()
        if len(paths) > 1 and not self.head.is_file():
            raise InputError(f"{self.head} is missing: {self._remedy('restore it')}")
        if len(paths) < count:
            raise InputError(
                f"{self.folder} holds {len(paths)} exchanges where {self.head.name} says {count}: "
                f"{self._remedy('restore the others')}"
            )
        for number, path in enumerate(paths):
            if int(path.name.partition("-")[0]) != number:
                raise InputError(
                    f"{path} is in the place of number {number}: one is missing or "
                    f"duplicated; {self._remedy('restore it')}"
                )
            content = path.read_bytes()
            yield path, content, number, before
            before = digest(content)
            if number == count - 1 and last and before != last:
                raise self.damaged(path, "was changed since it was written")
        self._last, self._in_head = (len(paths), before), (count, last)

    def damaged(self, path: Path, why: str) -> InputError:
        """Return the error for a file that cannot be used."""
        return InputError(f"{path} {why}: {self._remedy('restore it')}")

    def append(self, kind: str, make: Callable[[int, str], bytes]) -> None:
        """Write the next file, made from its number and the hash of the file before."""
        make_folder(self.folder)
        if self._last is None:
            for _ in self.links():
                pass
        assert self._last is not None
        number, before = self._last
        if number and self._in_head != self._last:  # a kill came between the last file and it
            self._write_head()
        for torn in self.folder.glob(f"{number:06d}-*.npz"):
            torn.unlink()
        content = make(number, before)
        with durable(self.folder / f"{number:06d}-{kind}.npz") as file:
            file.write(content)
        self._last = number + 1, digest(content)
        self._write_head()

    def _write_head(self) -> None:
        assert self._last is not None
        with durable(self.head) as file:
            document = {"count": self._last[0], "last": self._last[1]}
            file.write(json.dumps(document).encode())
        self._in_head = self._last

    def _files(self) -> tuple[list[Path], int, str]:
        """Return the files, how many the head counts, and the hash of the last of those."""
        count, last = self._said()  # first: another process may be adding files
        files = sorted(self.folder.glob("[0-9]*-*.npz"))
        if len(files) > count and not self._is_whole(files[-1].read_bytes()):
            files.pop()
        return files, count, last

    def _said(self) -> tuple[int, str]:
        """Return how many files there must be at least, and the hash of the last of those."""
        text = self.head.read_text("utf-8", errors="replace") if self.head.is_file() else ""
        if not text:  # not yet written, or emptied by the operator: the files that exist are all
            return 0, ""
        try:
            document = json.loads(text)
            return int(document["count"]), str(document["last"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.head} is damaged: {self._remedy('restore it')}") from None

    def _remedy(self, mend: str) -> str:
        return (
            f"{mend} from a copy, or, to continue from an earlier round, delete it, and what comes "
            f"after it, and empty {self.head.name}"
        )
