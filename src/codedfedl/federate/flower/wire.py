"""Messages of questions and answers: what is in them, and how answers are pulled within bounds.

Plain facts travel as JSON, and arrays as Flower sends them. A grid's own `pull_messages` blocks
while an answer is being uploaded, and then looks for each of its parts every second or more.
`Batched` uses the two requests beneath it: it asks for all answers at once, takes the parts that
are there, and never waits. No thread belongs to a question, and a slow upload holds nobody up. Only
when all parts are there and none is too large, the engine makes a message of them.

It uses internals of the versions of Flower that this package is tested with.
"""

import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.federate.transport import Answered, Answerer, Arrays, printable

# How often the engine is asked the same.
TRIES = 3

# Bytes of facts, and of what describes the arrays.
HEAD_BYTES = 2**23

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


def respond(message: Message, node: Callable[[], Answerer]) -> Message:
    """Let a node answer; errors of its own set-up go into the answer."""
    try:
        facts, arrays = node().answer(question_of(message), *unpack(message.content))
    except InputError as error:
        facts, arrays = {"problem": str(error)}, {}
    return Message(pack(facts, arrays), reply_to=message)


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


Pulled = Message | MalformedError | InputError
"""An answer, why it is not ours, or why there will be none."""


class Pulls(Protocol):
    """The answers to some questions."""

    def ready(self, waiting: Mapping[str, int | None]) -> Iterator[tuple[str, Pulled]]:
        """Yield what is there by now, one after the other: an answer may be large.

        Parameters
        ----------
        waiting
            The most bytes of each answer that is not there yet, by the message it answers.
        """


def tried(call: Callable[[], Iterable[Any]]) -> list[Any]:
    """Ask the engine, which may refuse a request when it is busy, a few times."""
    for attempt in range(TRIES):
        try:
            return list(call())
        except Exception as error:  # whatever the engine's transport raises
            reason = printable(f"{type(error).__name__}: {error}")
        time.sleep(0.5 * (attempt + 1))
    raise InputError(f"the engine does not answer ({reason}): see the SuperLink's log")


def has_parts(grid: Grid) -> bool:
    """Whether it is the grid of a SuperLink, where answers are uploaded in parts."""
    from flwr.superlink.grid.http_grid import HttpGrid  # which a node does not need

    return isinstance(grid, HttpGrid)


def pulls_of(grid: Grid) -> Pulls:
    """Return how answers are fetched from the grid of a SuperLink; refuse any other grid."""
    from flwr.superlink.grid.http_grid import HttpGrid

    if not has_parts(grid):
        raise InputError(
            f"a federation needs a SuperLink, not {type(grid).__name__}: start it with codedfedl "
            "federate run"
        )
    return Batched(grid, HttpGrid.pull_messages)


class Batched:
    """One request for all answers, and then one for each part that has been uploaded.

    Parameters
    ----------
    grid
        A grid over HTTP.
    assembled
        The grid's own way to make messages of their parts.
    """

    def __init__(self, grid: Any, assembled: Callable[[Any, Any], Iterable[Message]]) -> None:
        self._grid, self._assembled = grid, assembled
        self._begun: dict[str, _Parts] = {}  # the engine tells of an answer once

    def ready(self, waiting: Mapping[str, int | None]) -> Iterator[tuple[str, Pulled]]:
        """Yield the answers of which all parts are there, and forget these parts."""
        self._begun = {name: parts for name, parts in self._begun.items() if name in waiting}
        unknown = [identity for identity in waiting if identity not in self._begun]
        try:
            self._begun |= dict(tried(lambda: self._announced(unknown)))
        except InputError as error:
            yield from dict.fromkeys(unknown, error).items()
        for identity in list(self._begun):
            pulled = self._pulled(self._begun[identity], waiting[identity])
            if pulled is not None:
                del self._begun[identity]
                yield identity, pulled
            del pulled

    def _announced(self, unknown: list[str]) -> Iterable[tuple[str, "_Parts"]]:
        """Ask which answers have come, at least in part."""
        if not unknown:
            return
        client = self._grid._runtime_client
        response = client.PullMessages(PullAppMessagesRequest(message_ids=unknown))
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            identity = message.metadata.reply_to_message_id
            if identity in unknown:  # it may tell of others, too
                yield identity, _Parts(self._grid, message, tree)

    def _pulled(self, parts: "_Parts", largest: int | None) -> Pulled | None:
        """Pull what is there of an answer; what is wrong with one is no trouble for another."""
        try:
            if not parts.complete(largest):
                return None
            (message,) = self._assembled(parts.grid, [])
        except MalformedError as error:
            return error
        except Exception as error:  # a busy engine, or whatever a rogue has sent
            parts.failures += 1
            reason = printable(f"{type(error).__name__}: {error}")
            failed = parts.failures >= TRIES
            return InputError(f"the answer cannot be pulled ({reason})") if failed else None
        return message


class _Parts:
    """The parts of one answer, and the engine's API as if there were nothing else."""

    def __init__(self, grid: Any, message: Any, tree: ObjectTree) -> None:
        self._client, self._node, self._run = grid._runtime_client, grid.node, grid._run
        self._alone = PullAppMessagesResponse(messages_list=[message], message_object_trees=[tree])
        self._missing, self._parts = deque(dict.fromkeys(_identities(tree))), dict[str, Any]()
        self._bytes = self.failures = 0

    @property
    def grid(self) -> Any:
        """A grid that has this answer alone."""
        return SimpleNamespace(_run=self._run, node=self._node, _runtime_client=self)

    def complete(self, largest: int | None) -> bool:
        """Pull the parts that are there; say whether these are all. Refuse more than `largest`."""
        while self._missing:
            identity = self._missing[0]
            request = PullObjectRequest(
                node=self._node, run_id=self._run.run_id, object_id=identity
            )
            part = self._client.PullObject(request)
            if part.object_found and not part.object_available:
                self._missing.rotate(-1)  # it is being uploaded: the next look begins with another
                return False
            self._missing.popleft()
            self._parts[identity] = part
            self._bytes += len(part.object_content)
            self._refuse(self._bytes - HEAD_BYTES, largest)
        self._refuse(sum(map(self._inflated, self._parts)), largest)
        return True

    def _refuse(self, size: int, largest: int | None) -> None:
        if largest is not None and size > largest:
            self._parts.clear()
            raise MalformedError(f"malformed message (parts of more than {largest:,} bytes)")

    def _inflated(self, identity: str) -> int:
        """Return how many bytes the engine makes of an array.

        Its list of chunks may repeat one of them at will: a few bytes on the wire become any number
        in memory.
        """
        content = self._parts[identity].object_content
        if not content.startswith(b"Array "):
            return 0
        try:
            start = content.index(b"{")  # the head before it has the chunks' ids and no such letter
            chunks = [name.decode() for name in re.findall(rb"[0-9a-f]{64}", content[:start])]
            sizes = [len(self._parts[name].object_content.partition(b"\0")[2]) for name in chunks]
            return sum(sizes[index] for index in json.loads(content[start:])["arraychunk_ids"])
        except Exception as error:  # a rogue may send anything
            raise MalformedError(f"malformed message ({type(error).__name__})") from None

    def PullMessages(self, _request: Any) -> Any:  # noqa: N802
        return self._alone

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        return self._parts[request.object_id]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _identities(tree: ObjectTree) -> Iterator[str]:
    yield tree.object_id
    for child in tree.children:
        yield from _identities(child)
