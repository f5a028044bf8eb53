"""Arrays of `.npz` files: named members only, whose claims are checked before they are unpacked."""

import lzma
import struct
import tokenize
import zlib
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
import numpy.typing as npt

from codedfedl.errors import InputError
from codedfedl.io.files import check_room

__all__ = ["array_names", "read_arrays"]

_SUFFIX = ".npy"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_UNREADABLE = (
    BadZipFile,
    EOFError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    RuntimeError,  # encrypted, or packed in an unknown way
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
)


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file."""
    try:
        with ZipFile(path) as archive:
            return [name.removesuffix(_SUFFIX) for name in archive.namelist()]
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def read_arrays(
    path: Path, names: Iterable[str], most_bytes: int | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of these names that a file has; the others are not unpacked.

    Parameters
    ----------
    most_bytes
        Of all of them together, unpacked; by default half of the memory.
    """
    try:
        with ZipFile(path) as archive:
            members = {info.filename.removesuffix(_SUFFIX): info for info in archive.infolist()}
            chosen = {name: members[name] for name in names if name in members}
            needed = sum(info.file_size for info in chosen.values())
            check_room(path, needed)
            if most_bytes is not None and needed > most_bytes:
                raise InputError(
                    f"{path}: {', '.join(chosen)} have {needed:,} bytes where {most_bytes:,} are "
                    "the most: copy it again"
                )
            return {name: _array(path, archive, info) for name, info in chosen.items()}
    except InputError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _array(path: Path, archive: ZipFile, info: ZipInfo) -> npt.NDArray[Any]:
    """Read an array whose shape claims exactly the bytes that there are."""
    with archive.open(info) as member:
        _check_header(path, info, member)
    with archive.open(info) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _check_header(path: Path, info: ZipInfo, member: IO[bytes]) -> None:
    version = np.lib.format.read_magic(member)
    if version not in _HEADERS:
        raise ValueError(f"{info.filename} has the unknown version {version}")
    shape, _, kind = _HEADERS[version](member)
    if kind.hasobject:
        raise ValueError(f"{info.filename} holds Python objects, which are not read")
    claimed = prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or claimed != info.file_size - member.tell():
        raise InputError(
            f"{path}: {info.filename} claims the shape {shape} of {kind}, {claimed:,} bytes, and "
            f"has {info.file_size - member.tell():,}: copy it again"
        )


def _unreadable(path: Path, error: BaseException) -> InputError:
    why = "it is not an .npz file" if isinstance(error, BadZipFile) else error
    return InputError(
        f"cannot read {path}: {why}; it may be truncated: copy it again, or write it again with "
        "numpy.savez"
    )
