"""The answers of a journal, with the models that they are for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from codedfedl.arrays import Array
from codedfedl.core.protocol import Ask, Reply
from codedfedl.errors import InputError
from codedfedl.runs.exchange import Exchange

__all__ = ["Recalled"]


class Recalled:
    """The questions of a journal that are not answered yet, one per client at most.

    A client is asked again only once its last question is answered or over. So an answer is to
    the client's last question, however many rounds ago that was.

    Parameters
    ----------
    names
        Of the clients.
    folder
        Of the journal's exchanges, for errors.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names, self._folder = names, folder
        self._open: dict[int, tuple[int, Array]] = {}  # round and model, by client

    def __len__(self) -> int:
        """Return how many clients have a question that is not answered."""
        return len(self._open)

    def with_models(self, exchange: Exchange, ask: Ask, model: Array, round_: int) -> Exchange:
        """Return the next exchange of the journal, its replies with their models."""
        record = exchange.record
        if not ask.keep_late:
            self._open.clear()
        asked = set(np.flatnonzero(record.loads).tolist()) - set(record.busy)
        self._open |= dict.fromkeys(asked, (round_, model))
        replies = tuple(replace(reply, model=self._model(reply)) for reply in exchange.replies)
        for j in (*record.answered, *exchange.stored):
            self._open.pop(j, None)
        return replace(exchange, replies=replies)

    def _model(self, reply: Reply) -> Array:
        asked, model = self._open.get(reply.client, (None, None))
        if asked != reply.round:
            raise InputError(
                f"{self._folder} does not add up: {self._names[reply.client]} answers round "
                f"{reply.round + 1}, which it was not asked for; restore it from a copy, or start "
                "again with another --out"
            )
        return model
