"""Questions and answers as Flower messages: plain facts as JSON, and arrays."""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from codedfedl.federate.node import Answer, Arrays

__all__ = [
    "MalformedError",
    "message_type",
    "pack",
    "pack_arrays",
    "printable",
    "question_of",
    "unpack",
]


def printable(text: object, most: int = 200) -> str:
    """Return what somebody else wrote in a form that is safe in a log: one line, not too long."""
    line = " ".join(str(text)[: 4 * most].encode("ascii", "backslashreplace").decode().split())
    return "".join(c for c in line if c.isprintable())[:most]


class MalformedError(ValueError):
    """A message that is none of ours."""


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


def unpack(content: RecordDict) -> Answer:
    """Return facts and arrays; refuse anything else. No pickled object is ever read."""
    try:
        facts = json.loads(str(content.config_records["facts"]["json"]))
        arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
    except Exception as error:  # a rogue may send anything
        raise MalformedError(f"malformed message ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise MalformedError("malformed message (facts are no table)")
    return facts, arrays
