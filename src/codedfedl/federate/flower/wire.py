"""Questions and answers as Flower messages: plain facts as JSON, and arrays."""

import json
import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from codedfedl.federate.transport import Answered, Arrays

__all__ = [
    "MalformedError",
    "message_type",
    "pack",
    "pack_arrays",
    "question_of",
    "unpack",
]

# Letters of the facts in an answer.
MAX_FACTS = 2**22


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
