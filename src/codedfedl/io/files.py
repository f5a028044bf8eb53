"""Files that are written whole or not at all, and destinations that are checked first."""

import os
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from codedfedl.errors import InputError

__all__ = [
    "FIGURE_SUFFIXES",
    "TABLE_SUFFIXES",
    "Files",
    "cache_folder",
    "check_destination",
    "durable",
    "make_folder",
    "replacing",
    "synced",
]

TABLE_SUFFIXES = (".csv", ".parquet")
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


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


def synced(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_destination(path: str | Path, suffixes: Sequence[str]) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    path = Path(path)
    if path.suffix not in suffixes:
        raise InputError(f"cannot write {path}: its name must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist; create it")
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"cannot write {path}: the folder may not be written to; choose another")


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
        with durable(self.folder / key) as file:
            file.write(value)

    def __delitem__(self, key: str) -> None:
        (self.folder / key).unlink()

    def __iter__(self) -> Iterator[str]:
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return iter([path.name for path in found if not path.name.startswith(".")])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def remove(self) -> None:
        """Delete all files, and the folder."""
        for key in self:
            del self[key]
        if self.folder.is_dir():
            self.folder.rmdir()
