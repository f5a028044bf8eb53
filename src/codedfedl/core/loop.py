"""The loop of every run: a scheme asks, a runtime answers, the scheme learns.

A runtime may drive many schemes side by side, as the simulator does; each has a `Driver`, and all
rules of the loop are in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from codedfedl.arrays import Array, IntArray
from codedfedl.core.client import Prepare
from codedfedl.core.disclosure import Disclosure
from codedfedl.core.masked import Masked, masked
from codedfedl.core.protocol import EACH, Ask, Inbox, Runtime, Scheme, State, Task
from codedfedl.core.record import SETUP
from codedfedl.core.rounded import Rounded
from codedfedl.core.waiting import Everyone
from codedfedl.core.work import Work
from codedfedl.errors import InputError
from codedfedl.learning.learner import Learner
from codedfedl.learning.messages import MODEL_BITS
from codedfedl.learning.optimisers import OPTIMISERS

ROUNDED = (Disclosure.GRADIENTS, Disclosure.MODELS)
"""What is sent with fewer bits, where a scheme asks for that."""

PREPARE = Ask(Prepare(), Everyone(), setup=True)
"""The set-up of a scheme that has none of its own."""


class Driver:
    """A scheme that is being run.

    Parameters
    ----------
    state
        From `Scheme.start`, or a later one.
    rounds
        Maximum number of rounds.
    """

    def __init__(self, scheme: Scheme, state: State, rounds: int) -> None:
        self.scheme, self.state, self.rounds = scheme, state, rounds
        self.played = 0
        self._prepared = False
        self._asked: Ask | None = None
        self._encoded: Masked | None = None

    def ask(self) -> Ask | None:
        """Return what to ask the clients now; None when all is done."""
        ask = self.scheme.ask(self.state)
        if ask is None:
            return None
        check_ask(self.scheme, ask)
        self._encoded = None
        if not ask.setup and not self._prepared and ask.work.embeds:
            ask = PREPARE
        elif not ask.setup and self.played >= self.rounds:
            return None
        elif is_secure(self.scheme, ask):
            self._encoded = masked(ask.work, self.state.task)
            ask = replace(ask, work=self._encoded, secure=True, noise=0.0)
        elif self.scheme.message_bits != MODEL_BITS and ask.work.discloses in ROUNDED:
            learner = self.state.task.learner
            draw = self.played + 1 if not ask.setup else 0
            ask = replace(
                ask, work=Rounded(ask.work, self.scheme.message_bits, learner.tensor_sizes, draw)
            )
        elif ask.secure != (ask.noise is not None):  # noise is only in secure sums
            ask = replace(ask, secure=ask.noise is not None)
        self._asked = ask
        return ask

    @property
    def round(self) -> int:
        """The round that the last ask belongs to, from 0 on; `SETUP` before the first."""
        assert self._asked is not None
        return SETUP if self._asked.setup else self.played

    @property
    def question(self) -> Array:
        """The model that the last ask is about."""
        assert self._asked is not None
        return self.state.model if self._asked.model is None else self._asked.model

    def receive(self, inbox: Inbox) -> None:
        """Let the scheme learn from the answers to the last ask."""
        ask = self._asked
        assert ask is not None
        self._prepared |= ask.work.embeds or not ask.setup
        if ask is not PREPARE:
            if self._encoded is not None:
                inbox = self._decoded(self._encoded, inbox)
            state = self.scheme.receive(self.state, inbox)
            if not isinstance(state, State):
                raise InputError(
                    f"scheme {self.scheme.info.name!r} returned {state!r} from receive: "
                    "return a State"
                )
            self.state = state
        self.played += not ask.setup

    def _decoded(self, work: Masked, inbox: Inbox) -> Inbox:
        """Return the numbers of a secure sum; where it was not given out, as if nobody arrived."""
        if inbox.sums:
            return replace(inbox, sums=work.decoded(inbox.sums, self.state.model))
        return replace(inbox, arrived=np.zeros_like(inbox.arrived), points=0.0)


def drive(driver: Driver, runtime: Runtime) -> Iterator[int]:
    """Drive a scheme on a runtime to its end; yields every round, `SETUP` for what comes before."""
    while (ask := driver.ask()) is not None:
        round_ = driver.round
        driver.receive(runtime.exchange(ask, driver.question, round_))
        yield round_


def check_ask(scheme: Scheme, ask: Ask) -> None:
    """Refuse an ask that no runtime could answer: an invalid one must not stall a run."""
    scheme_name = scheme.info.name
    if not isinstance(ask, Ask):
        raise InputError(f"scheme {scheme_name!r} returned {ask!r}: return an Ask, or None")
    if not isinstance(ask.work, Work):
        raise InputError(
            f"scheme {scheme_name!r} asks for {ask.work!r}: give a Work, with answer and cost"
        )
    if not hasattr(ask.wait, "enough") or not hasattr(ask.wait, "deadline"):
        raise InputError(
            f"scheme {scheme_name!r} waits with {ask.wait!r}: give a Wait, with deadline and enough"
        )


def refuse_learner(scheme: Scheme, learner: Learner) -> None:
    """Refuse to train with a scheme that needs a quadratic what is none."""
    if learner.quadratic:
        return
    name, chosen = scheme.info.name, str(getattr(scheme, "optimiser", ""))
    if scheme.info.quadratic:
        raise InputError(
            f"{name} codes or solves a quadratic, which the loss of a network is not: set "
            "model.kind = 'linear', or choose a scheme of gradients, such as uncoded or paced"
        )
    if chosen in OPTIMISERS and OPTIMISERS[chosen].quadratic:
        raise InputError(
            f"{name}.optimiser is {chosen!r}, which is for quadratics: choose sgd or adam, or set "
            "model.kind = 'linear'"
        )


def is_secure(scheme: Scheme, ask: Ask) -> bool:
    """Return whether a sum is to be made secure; refuse where every single answer is needed.

    What a secure scheme discloses beside its sums is left alone, such as parity.
    """
    discloses = ask.work.discloses
    if not (ask.secure or scheme.secure) or ask.noise is not None or discloses is None:
        return False
    if scheme.secure and discloses in scheme.disclosure:
        return False
    if ask.combine is EACH or ask.keep_late:
        raise InputError(
            f"{scheme.info.name} needs each client's answer, and a secure sum hides it: choose "
            "uncoded, coded, balanced, coded-newton or private, or leave secure out"
        )
    return True


def loads_of(ask: Ask, task: Task) -> IntArray:
    """Return how many points an ask is about, shape (n,); refuse more than there are."""
    most = ask.work.available(task)
    if ask.loads is None:
        return np.array(most, dtype=np.int64)
    loads = np.array(ask.loads, dtype=np.int64)
    if loads.shape != most.shape or (loads < 0).any() or (loads > most).any():
        raise InputError(
            f"{ask.work.kind} is asked for {loads.tolist()} points where the clients have "
            f"{most.tolist()}: ask for no more"
        )
    return loads


class RunningSum:
    """A running sum that holds one answer at a time in memory."""

    def __init__(self) -> None:
        self._totals: dict[str, Array] = {}
        self._updatable: set[str] = set()  # no answer refers to them

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Add an answer."""
        for name, array in arrays.items():
            before = self._totals.get(name)
            if before is None:
                self._totals[name] = array
            elif name in self._updatable and before.dtype == array.dtype:
                before += array
                self._totals[name] = before
            else:
                self._totals[name] = before + array
                self._updatable.add(name)

    def result(self) -> dict[str, Array]:
        """Return the sums; empty where nothing was added."""
        return self._totals
