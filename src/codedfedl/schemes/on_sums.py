"""Schemes on secure sums: the server sees the sum of all answers, and no answer by itself."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from codedfedl.core.disclosure import Disclosure
from codedfedl.core.masked import Masked, masked
from codedfedl.core.protocol import EACH, Ask, Inbox, Scheme, State
from codedfedl.errors import InputError
from codedfedl.schemes.coded_newton import CodedNewton
from codedfedl.schemes.newton_on_sums import NewtonOnSums

__all__: list[str] = []


class _OnSums:
    """Turns the asks of another scheme into secure sums in integers, and decodes them."""

    def ask(self, state: State) -> Ask | None:
        """Ask for a secure sum; refuse where every single answer is needed."""
        ask: Ask | None = super().ask(state)  # type: ignore[misc]
        if ask is None or not _says_something(ask, state):
            return ask
        if ask.combine is EACH or ask.keep_late:
            raise InputError(
                f"{self.info.name} needs each client's answer, and a secure sum hides it: choose "  # type: ignore[attr-defined]
                "uncoded, coded, balanced, coded-newton or private, or leave secure out"
            )
        return replace(ask, work=masked(ask.work, state.task), noise=0.0)

    def receive(self, state: State, inbox: Inbox) -> State:
        """Decode the sums, and learn as the other scheme does."""
        ask = self.ask(state)
        if ask is not None and isinstance(ask.work, Masked):
            inbox = replace(inbox, sums=ask.work.decoded(inbox.sums, state.model))
            if not inbox.sums:  # too few arrived for a sum: as good as nobody
                inbox = replace(inbox, arrived=np.zeros_like(inbox.arrived), points=0.0)
        learnt: State = super().receive(state, inbox)  # type: ignore[misc]
        return learnt


def on_sums(scheme: Scheme) -> Scheme:
    """Return a scheme that trains on secure sums.

    Its state, plan and facts are those of the scheme; only sums leave a client, and the parity of
    `coded-newton`, which has its own class.
    """
    own = type(scheme)
    settings = {one.name: getattr(scheme, one.name) for one in fields(scheme)}  # type: ignore[arg-type]
    if isinstance(scheme, CodedNewton):
        return NewtonOnSums(**settings)
    members: dict[str, Any] = {"info": replace(own.info, disclosure=frozenset({Disclosure.SUMS}))}
    secured = type(own.__name__, (_OnSums, own), members)
    made: Scheme = secured(**settings)
    return made


def _says_something(ask: Ask, state: State) -> bool:
    """Return whether anything leaves the clients."""
    return ask.work.shapes(state.task, 1) != {}
