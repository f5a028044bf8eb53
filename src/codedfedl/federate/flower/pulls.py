"""Which answers are there: asked of the engine for all questions in one request.

A grid's own `pull_messages` blocks while an answer is being uploaded, and then looks for each of
its parts every second or more. `Batched` uses the two requests beneath it: it asks for all answers
at once, takes the parts that are there, and never waits. No thread belongs to a question, and a
slow upload holds nobody up.

It uses internals of the versions of Flower that this package is tested with.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

from flwr.app import Message
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from codedfedl.errors import InputError
from codedfedl.federate.flower.wire import MalformedError, inflating
from codedfedl.federate.transport import printable

__all__ = ["Batched", "Pulled", "Pulls", "pulls_of", "tried"]

TRIES = 3
"""How often the engine is asked the same."""

HEAD_BYTES = 2**23
"""Bytes of facts, and of what describes the arrays."""

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
        except MalformedError:  # trying again would not mend it
            raise
        except Exception as error:  # whatever the engine's transport raises
            reason = printable(f"{type(error).__name__}: {error}")
        time.sleep(0.5 * (attempt + 1))
    raise InputError(f"the engine does not answer ({reason}): see the SuperLink's log")


def pulls_of(grid: Grid) -> Pulls:
    """Return how answers are got from the grid of a SuperLink; refuse any other grid."""
    if not isinstance(grid, HttpGrid):
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
    put_together
        The grid's own way to make messages of their parts.
    """

    def __init__(self, grid: Any, put_together: Callable[[Any, Any], Iterable[Message]]) -> None:
        self._grid, self._put_together = grid, put_together
        self._begun: dict[str, _Parts] = {}  # the engine tells of an answer once

    def ready(self, waiting: Mapping[str, int | None]) -> Iterator[tuple[str, Pulled]]:
        """Yield the answers of which all parts are there, and forget these parts."""
        self._begun = {name: parts for name, parts in self._begun.items() if name in waiting}
        unknown = [identity for identity in waiting if identity not in self._begun]
        try:
            self._begun |= dict(tried(lambda: self._heard_of(unknown)))
        except InputError as error:
            yield from dict.fromkeys(unknown, error).items()
        for identity in list(self._begun):
            pulled = self._pulled(self._begun[identity], waiting[identity])
            if pulled is not None:
                del self._begun[identity]
                yield identity, pulled
            del pulled

    def _heard_of(self, unknown: list[str]) -> Iterable[tuple[str, "_Parts"]]:
        """Ask which answers have come, at least in part."""
        if not unknown:
            return
        client = self._grid._runtime_client
        heard = client.PullMessages(PullAppMessagesRequest(message_ids=unknown))
        for message, tree in zip(heard.messages_list, heard.message_object_trees, strict=True):
            identity = message.metadata.reply_to_message_id
            if identity in unknown:  # it may tell of others, too
                alone = PullAppMessagesResponse(
                    messages_list=[message], message_object_trees=[tree]
                )
                yield identity, _Parts(client, alone)

    def _pulled(self, parts: "_Parts", largest: int | None) -> Pulled | None:
        """Pull what is there of an answer; what is wrong with one is no trouble for another."""
        parts.largest = largest
        grid = SimpleNamespace(_run=self._grid._run, node=self._grid.node, _runtime_client=parts)
        try:
            with inflating(largest):
                (message,) = self._put_together(grid, [])
        except _UploadingError as error:
            error.__traceback__ = None  # its frames hold the parts, and refer back to it
            return None
        except MalformedError as error:
            return error
        except Exception as error:  # a busy engine, or whatever a rogue has sent
            parts.failures += 1
            reason = printable(f"{type(error).__name__}: {error}")
            failed = parts.failures >= TRIES
            return InputError(f"the answer cannot be pulled ({reason})") if failed else None
        return message


class _UploadingError(Exception):
    """A part of an answer is not there yet."""


class _Parts:
    """The engine's API as it is for one answer: parts that were pulled are not pulled again.

    Attributes
    ----------
    largest
        Maximum bytes of all parts together: no more than one part beyond it is ever in memory.
    """

    def __init__(self, client: Any, alone: Any) -> None:
        self._client, self._alone, self.failures = client, alone, 0
        self.largest: int | None = None
        self._pulled: dict[str, Any] = {}
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullMessages(self, _request: Any) -> Any:  # noqa: N802
        return self._alone

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        part = self._pulled.get(request.object_id)
        if part is None:
            part = self._client.PullObject(request)
            if part.object_found and not part.object_available:
                raise _UploadingError
            self._bytes += len(part.object_content)
            if self.largest is not None and self._bytes > self.largest + HEAD_BYTES:
                self._pulled.clear()
                raise MalformedError(
                    f"malformed message (parts of more than {self.largest:,} bytes)"
                )
            self._pulled[request.object_id] = part
        return part
