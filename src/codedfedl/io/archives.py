"""Arrays of `.npz` files: what each claims is checked before it is unpacked."""

import io
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
from numpy.lib import format as npy

from codedfedl.errors import InputError
from codedfedl.io.files import check_room

_REMEDY = "it may be truncated: copy it again, or write it again with numpy.savez"
_SUFFIX = ".npy"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_BAD_ZIP = (BadZipFile, EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error)
_BAD_ARRAY = (MemoryError, SyntaxError, TypeError, ValueError, struct.error, tokenize.TokenError)


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a file."""
    try:
        with ZipFile(path) as archive:
            return [name.removesuffix(_SUFFIX) for name in archive.namelist()]
    except (*_BAD_ZIP, *_BAD_ARRAY) as error:
        raise _unreadable(path, error) from None


def read_arrays(
    path: Path,
    names: Iterable[str] | None = None,
    most_bytes: int | None = None,
    *,
    skip: tuple[str, ...] = (),
    content: bytes | None = None,
    remedy: str = _REMEDY,
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file, or those of given names that it has; others are not unpacked.

    Parameters
    ----------
    most_bytes
        Of all of them together, unpacked; by default half of the memory.
    skip
        How the names of arrays begin that are left out.
    content
        Of the file, where it was read already.
    remedy
        What to do about a file that cannot be read.
    """
    try:
        with ZipFile(path if content is None else io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(_SUFFIX): info for info in archive.infolist()}
            wanted = [name for name in (members if names is None else names) if name in members]
            wanted = [name for name in wanted if not name.startswith(skip)]
            needed = sum(members[name].file_size for name in wanted)
            check_room(path, needed)
            if most_bytes is not None and needed > most_bytes:
                raise InputError(
                    f"{path}: {', '.join(wanted)} have {needed:,} bytes where {most_bytes:,} are "
                    "the most: copy it again"
                )
            return {name: _array(path, archive, members[name]) for name in wanted}
    except InputError:
        raise
    except (*_BAD_ZIP, *_BAD_ARRAY) as error:
        raise _unreadable(path, error, remedy) from None


def _array(path: Path, archive: ZipFile, info: ZipInfo) -> npt.NDArray[Any]:
    """Read an array whose shape claims exactly the bytes that there are."""
    with archive.open(info) as member:
        _check_header(path, info, member)
    with archive.open(info) as member:
        return np.asarray(npy.read_array(member, allow_pickle=False))


def _check_header(path: Path, info: ZipInfo, member: IO[bytes]) -> None:
    version = npy.read_magic(member)
    if version not in _HEADERS:
        raise ValueError(f"{info.filename} has the unknown version {version}")
    shape, _, kind = _HEADERS[version](member)
    if kind.hasobject:
        raise ValueError(f"{info.filename} holds Python objects, which are not read")
    held, claimed = info.file_size - member.tell(), prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or claimed != held:
        raise InputError(
            f"{path}: {info.filename} claims the shape {shape} of {kind}, {claimed:,} bytes, and "
            f"has {held:,}: copy it again"
        )


def _unreadable(path: Path, error: BaseException, remedy: str = _REMEDY) -> InputError:
    reason = "it is not an .npz file" if isinstance(error, BadZipFile) else error
    return InputError(f"cannot read {path}: {reason}; {remedy}")
