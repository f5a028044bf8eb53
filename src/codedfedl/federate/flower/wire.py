"""Questions and answers as Flower messages: plain facts as JSON, and arrays."""

import json
from collections.abc import Mapping
from typing import Any

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


def unpack(content: RecordDict) -> Answered:
    """Return facts and arrays; refuse anything else. No pickled object is ever read."""
    try:
        # By name: the views by type refer back to the message, which then stays in memory.
        config, record = content["facts"], content["arrays"]
        assert isinstance(config, ConfigRecord)
        assert isinstance(record, ArrayRecord)
        facts = json.loads(str(config["json"]))
        arrays = {name: array.numpy() for name, array in record.items()}
    except Exception as error:  # a rogue may send anything
        raise MalformedError(f"malformed message ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise MalformedError("malformed message (facts are no table)")
    return facts, arrays
