"""Files that are written whole or not at all, destinations that are checked first, and locks."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from shutil import which
from typing import IO, Any, BinaryIO

from codedfedl.errors import InputError

TABLE_SUFFIXES = (".csv", ".parquet")
FIGURE_SUFFIXES = (".png", ".svg", ".pdf", ".pgf")
_LATEX = ("xelatex", "lualatex", "pdflatex")

MAX_MEMORY_SHARE = 0.5
"""The share of the memory that one file may take: what is read is copied at least once."""

_CONTAINERS = Path("/sys/fs/cgroup")
_CONTAINER_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # in versions 2 and 1


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside the real file, and move it into place on success."""
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InputError(f"cannot write {path}: {reason}") from None
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def durable(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that gets its name only once it is on disk, so that a power cut is harmless."""
    with replacing(path) as partial, partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    synced(path.parent)  # the name is stored in the folder


def write_durably(path: Path, content: bytes) -> None:
    """Write a file that is on disk when this returns."""
    with durable(path) as file:
        file.write(content)


def synced(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, remedy: str) -> Any:
    """Read a JSON document, or say why it cannot be read, and what to do about it."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}; {remedy}") from None


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document that is on disk when this returns."""
    write_durably(path, json.dumps(document, indent=1).encode())


def digest(content: bytes | memoryview) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


class HashedFile:
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


def check_destination(path: str | Path, suffixes: Sequence[str]) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    path = Path(path)
    if path.suffix not in suffixes:
        raise InputError(f"cannot write {path}: its name must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist; create it")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if path.suffix == ".pgf":
        latex_program()
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: the folder may not be written to; choose another")


def latex_program() -> str:
    """Return the LaTeX that is installed, without which no .pgf figure can be written."""
    for program in _LATEX:
        if which(program):
            return program
    raise InputError(f"a .pgf figure needs LaTeX ({', '.join(_LATEX)}): install it, or write .pdf")


def make_folder(path: str | Path, *, private: bool = False) -> None:
    """Make a folder, with its parents, or say why it cannot be; a private one is its owner's."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        if private:
            Path(path).chmod(0o700)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}: {error.strerror}") from None


def cache_folder(name: str) -> Path:
    """Return a folder in the user's cache: of a data set that is downloaded, or of embeddings."""
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("codedfedl")) / name


class Files(MutableMapping[str, bytes]):
    """Values in files of a folder, each on disk when its assignment returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, key: str) -> bytes:
        try:
            return (self.folder / key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        make_folder(self.folder)
        write_durably(self.folder / key, value)

    def __delitem__(self, key: str) -> None:
        (self.folder / key).unlink()

    def __iter__(self) -> Iterator[str]:
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return iter([path.name for path in paths if not path.name.startswith(".")])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def remove(self) -> None:
        """Delete all files, and the folder."""
        for key in self:
            del self[key]
        if self.folder.is_dir():
            self.folder.rmdir()


def memory(groups: Path = _CONTAINERS) -> float:
    """Return the bytes of this machine's memory, or of its container's; ∞ where it is unknown."""
    limits = [inf]
    with suppress(AttributeError, ValueError, OSError):
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    for name in _CONTAINER_LIMITS:
        with suppress(ValueError, OSError):  # no such file, or the word max
            limits.append(float((groups / name).read_text()))
    return min(limits)


def check_room(path: Path, needed: int) -> None:
    """Refuse a file that takes more than half of the memory when it is unpacked, before it is."""
    available = memory()
    if needed > MAX_MEMORY_SHARE * available:
        raise InputError(
            f"{path} takes {needed:,} bytes of memory when it is read, more than half of the "
            f"{available:,.0f} that there are: split it, or use a machine with more memory"
        )


def lock(file: IO[Any], *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed, or the process that holds it ends, however it ends.

    Parameters
    ----------
    shared
        Let others share it, where the system can.
    wait
        Until whoever holds it is done.

    Raises
    ------
    OSError
        If another process holds it, and this one does not wait.
    """
    _lock(file, shared, wait)


@contextmanager
def locked(path: Path, *, private: bool = False) -> Iterator[None]:
    """Hold the lock of a file until the context ends, and wait for it first.

    Parameters
    ----------
    private
        Make its folder, where there is none, for this user alone.
    """
    make_folder(path.parent, private=private)
    with path.open("w") as file:
        lock(file, wait=True)
        yield


if sys.platform == "win32":  # it has no shared locks, and gives up waiting after ten seconds
    import msvcrt

    def _lock(file: IO[Any], _shared: bool, wait: bool) -> None:
        file.seek(0)
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    raise
            else:
                return

else:
    import fcntl

    def _lock(file: IO[Any], shared: bool, wait: bool) -> None:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
