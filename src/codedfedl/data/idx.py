"""MNIST and its look-alikes: IDX files, found on this machine or else downloaded."""

import gzip
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import IntArray
from codedfedl.data.dataset import Dataset, Origin
from codedfedl.errors import InputError
from codedfedl.io.files import cache_folder, check_room

MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/",),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
}

CHECKSUMS = {  # MD5, as published with the data
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}

IDX_NAMES = tuple(MIRRORS)
CLASSES = 10

_WHITEST = 255.0
_FLOAT32 = 4  # bytes that a pixel takes

_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
_DEBIAN = {"fashion-mnist": (Path("/usr/share/dataset-fashion-mnist"),)}
# Both data sets use the same file names. The CRC-32 of the test labels tells them apart.
_TEST_LABELS = {0xEE8604D9: "mnist", 0x242BC73F: "fashion-mnist"}
_AGAIN = "copy or download it again"

Bytes = npt.NDArray[np.uint8]


def load_idx(name: str, directory: str | Path | None) -> Dataset:
    """Read a data set of 10 classes from its four IDX files, with inputs in [0, 1]."""
    files = find_files(name, directory, MIRRORS[name], CHECKSUMS[name])
    images, labels = _read_part(files[0], files[1])
    test_images, test_labels = _read_part(files[2], files[3])
    held = _TEST_LABELS.get(zlib.crc32(test_labels.astype(np.uint8).tobytes()), name)
    if held != name:
        raise InputError(
            f"{files[3].parent} holds {held}, not {name}: put each into a folder with its own name"
        )
    image = (images.shape[1], images.shape[2], 1)
    inputs, test_inputs = (_flat(part) for part in (images, test_images))
    origin = Origin().of_pixels(inputs.shape[1], _WHITEST)
    return Dataset(name, inputs, labels, test_inputs, test_labels, CLASSES, image, origin, bits=8)


def _flat(images: Bytes) -> npt.NDArray[np.float32]:
    """Return a row of numbers in [0, 1] for every image."""
    flat = images.reshape(len(images), prod(images.shape[1:]))
    return flat.astype(np.float32) / np.float32(_WHITEST)


def find_files(
    name: str, directory: str | Path | None, mirrors: Sequence[str], checksums: Mapping[str, str]
) -> list[Path]:
    """Return the paths of training images and labels, and of test images and labels.

    The first folder that has all four is taken: below `directory`, below the environment variable
    CODEDFEDL_DATA, where Debian puts them, then the cache. Where none has any, they are downloaded.
    """
    incomplete = ""
    for folder in data_folders(name, directory):
        present = [path for file in _FILES if (path := _present(folder, file))]
        if len(present) == len(_FILES):
            return present
        if present and not incomplete:
            missing = next(file for file in _FILES if not _present(folder, file))
            incomplete = (
                f"{folder} has {present[0].name} and lacks {missing}: add it, gzipped or not"
            )
    if incomplete:
        raise InputError(incomplete)
    folder = cache_folder(name)
    if not all(_present(folder, file) for file in _FILES):
        download(name, folder, mirrors, checksums)
    return [path for file in _FILES if (path := _present(folder, file))]


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read an IDX file of bytes, gzipped or not.

    The format: two zero bytes, 8 for unsigned bytes, the number of dimensions, the length of each
    as a big-endian 32-bit integer, and then the bytes.
    """
    with _opened(path) as file:
        return _read_bytes(path, file, dimensions)


def _read_bytes(path: Path, file: IO[bytes], dimensions: int) -> Bytes:
    """Read as many bytes as the header says, and one more, which must not be there."""
    header = 4 + 4 * dimensions
    content = file.read(header)
    if not content.startswith(b"\0\0\x08"):
        raise InputError(
            f"{path} starts with {content[:4].hex(' ') or 'nothing'} where the magic number "
            f"00 00 08 {dimensions:02} is needed: it is not an IDX file of bytes; {_AGAIN}"
        )
    if content[3:] and content[3] != dimensions:
        raise InputError(
            f"{path} has {content[3]} dimensions where {dimensions} are needed: "
            f"images and labels may be swapped; {_AGAIN}"
        )
    whole = len(content) >= header
    shape = np.frombuffer(content[4:header], dtype=">u4").tolist() if whole else [0]
    needed = prod(shape)
    check_room(path, _FLOAT32 * needed)
    data = file.read(needed + 1)
    if not whole or len(data) != needed:
        there, wanted = len(content) + len(data), header + needed
        what = "it is truncated" if there < wanted else "something follows the data"
        count = f"{there}" if there <= wanted else f"{there} or more"
        raise InputError(f"{path} has {count} bytes where {wanted} are needed: {what}; {_AGAIN}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def data_folders(name: str, directory: str | Path | None) -> Iterator[Path]:
    """Yield the folders in which a data set may be, the likeliest first."""
    variable = os.environ.get("CODEDFEDL_DATA")
    for source, given in (("--data", directory), ("CODEDFEDL_DATA", variable)):
        if given:
            root = Path(given).expanduser()
            if not root.is_dir():
                raise InputError(f"{source} is {given}: there is no such folder; create or correct")
            yield from (root / name, root / _TORCHVISION[name], root)
    yield from _DEBIAN.get(name, ())


def _present(folder: Path, file: str) -> Path | None:
    return next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked as it is read."""
    try:
        with path.open("rb") as packed:
            zipped = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=packed)) if zipped else packed
    except EOFError:
        raise InputError(f"{path} is truncated: its gzip stream has no end; {_AGAIN}") from None
    except (OSError, zlib.error, OverflowError) as error:
        raise InputError(f"cannot read {path}: {error}; {_AGAIN}") from None


def _read_part(image_file: Path, label_file: Path) -> tuple[Bytes, IntArray]:
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise InputError(
            f"{image_file} has {len(images)} images and {label_file} has {len(labels)} labels: "
            "take both from the same data set"
        )
    wrong = labels >= CLASSES
    if wrong.any():
        raise InputError(
            f"{label_file} has the label {labels[wrong][0]} at position {np.argmax(wrong)}: "
            f"labels are 0 to {CLASSES - 1}; {_AGAIN}"
        )
    return images, labels.astype(np.int64)


def download(name: str, folder: Path, mirrors: Sequence[str], checksums: Mapping[str, str]) -> Path:
    """Download the files that a folder lacks, from the first mirror that has them all.

    Parameters
    ----------
    name
        The data set, for messages.
    folder
        Where the files go; what is there with the right checksum is kept.
    mirrors
        Addresses that end in a slash, tried in turn.
    checksums
        The MD5 of every file.
    """
    import pooch  # type: ignore[import-untyped]

    reasons = []
    for mirror in mirrors:
        try:
            for file, md5 in checksums.items():
                pooch.retrieve(
                    mirror + file, f"md5:{md5}", fname=file, path=folder, downloader=_stream
                )
        except (OSError, ValueError) as error:  # ValueError: the checksum
            reasons.append(f"{mirror}{file}: {_reason(error)}")
        else:
            return folder
    raise InputError(
        f"cannot download {name} ({'; '.join(reasons)}): put the files {', '.join(checksums)} "
        f"into DIR/{name} and say --data DIR or CODEDFEDL_DATA=DIR"
    )


def _stream(url: str, destination: str, _pooch: Any) -> None:
    import requests
    from rich.console import Console
    from rich.progress import Progress

    with (
        requests.get(url, stream=True, timeout=30) as response,
        Path(destination).open("wb") as file,
        Progress(
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as progress,
    ):
        response.raise_for_status()
        total = int(response.headers.get("content-length", 0)) or None
        bar = progress.add_task(Path(url).name, total=total)
        for chunk in response.iter_content(2**16):
            file.write(chunk)
            progress.advance(bar, len(chunk))


def _reason(error: OSError | ValueError) -> str:
    from requests import ConnectionError as NoConnection
    from requests import HTTPError, RequestException, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, Timeout):
        return "no answer in time"
    if isinstance(error, NoConnection):
        return "no connection"
    if isinstance(error, RequestException):
        return "the connection broke"
    if isinstance(error, OSError):
        return str(error)
    return "its checksum is wrong"
