"""Files from public mirrors: complete and with the right checksum, or not there at all."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError

__all__ = ["CHECKSUMS", "MIRRORS", "download"]

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
