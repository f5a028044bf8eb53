"""Questions and answers as Flower messages: plain facts as JSON, and arrays."""

import json
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from codedfedl.federate.transport import Answered, Arrays

__all__ = [
    "MalformedError",
    "inflating",
    "message_type",
    "pack",
    "pack_arrays",
    "question_of",
    "unpack",
]

MAX_FACTS = 2**22
"""Letters of the facts in an answer."""


class MalformedError(ValueError):
    """A message that is not in our format."""


def message_type(question: str) -> str:
    """Return the Flower message type of a question."""
    return f"query.{question}"


def question_of(message: Message) -> str:
    """Return the question that a message asks."""
    return str(message.metadata.message_type.partition(".")[2])


def pack(facts: Mapping[str, Any], arrays: Arrays | ArrayRecord) -> RecordDict:
    """Return a message's content; arrays that go to many are packed once, by `pack_arrays`."""
    record = arrays if isinstance(arrays, ArrayRecord) else pack_arrays(arrays)
    return RecordDict({"facts": ConfigRecord({"json": json.dumps(facts)}), "arrays": record})


def pack_arrays(arrays: Arrays) -> ArrayRecord:
    """Return arrays as Flower sends them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def unpack(content: RecordDict, largest: int | None = None) -> Answered:
    """Return facts and arrays; refuse anything else. No pickled object is ever read.

    Parameters
    ----------
    largest
        Maximum bytes of all arrays together, counted as often as each is named.
    """
    try:
        # By name: the views by type refer back to the message, which then stays in memory.
        config, record = content["facts"], content["arrays"]
        assert isinstance(config, ConfigRecord)
        assert isinstance(record, ArrayRecord)
        text = str(config["json"])
        _refuse_large(len(text), MAX_FACTS)
        _refuse_large(sum(len(array.data) for array in record.values()), largest)
        facts = json.loads(text)
        arrays = {name: _numbers(array) for name, array in record.items()}
    except MalformedError:
        raise
    except Exception as error:  # a rogue may send anything
        raise MalformedError(f"malformed message ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise MalformedError("malformed message (facts are not a table)")
    return facts, arrays


def _numbers(array: Array) -> npt.NDArray[Any]:
    """Return an array whose size matches its shape: memory is allocated by the shape."""
    file = BytesIO(array.data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = read(file) if version == (1, 0) else np.lib.format.read_array_header_2_0(file)
    if math.prod(shape) * dtype.itemsize != len(array.data) - file.tell():
        raise MalformedError("malformed message (the size of an array does not match its shape)")
    return array.numpy()


def _refuse_large(size: int, largest: int | None) -> None:
    if largest is not None and size > largest:
        raise MalformedError(f"malformed message ({size:,} bytes, {largest:,} at most)")


# The engine puts an array together from chunks while it pulls a message, and the list of chunks may
# repeat one of them at will: a few bytes on the wire become any number in memory. Before that, only
# the array itself can tell its final size.

_allowed = threading.local()
_inflate = Array.inflate


@contextmanager
def inflating(largest: int | None) -> Iterator[None]:
    """Limit the total bytes of the arrays that this thread pulls."""
    _allowed.left = largest
    try:
        yield
    finally:
        _allowed.left = None


def _bounded_inflate(object_content: bytes, children: dict[str, Any] | None = None) -> Array:
    """Inflate an array unless its chunks are larger together than what is left."""
    left = getattr(_allowed, "left", None)
    if left is not None:
        size = _declared(object_content, children or {})
        _refuse_large(size, left)
        _allowed.left = left - size
    return _inflate(object_content, children)


def _declared(content: bytes, chunks: Mapping[str, Any]) -> int:
    """Return how many bytes an array's list of chunks comes to."""
    try:
        start = content.index(b"{")  # the head before it has the chunks' ids and no such letter
        ids = [digits.decode() for digits in re.findall(rb"[0-9a-f]{64}", content[:start])]
        sizes = [len(chunks[name].data) for name in ids]
        return sum(sizes[index] for index in json.loads(content[start:])["arraychunk_ids"])
    except Exception as error:  # a rogue may send anything
        raise MalformedError(f"malformed message ({type(error).__name__})") from None


Array.inflate = staticmethod(_bounded_inflate)  # type: ignore[method-assign]
