"""`paced`: a grid whose rounds end when they should, and whose replies have the right weights.

A strategy of Flower's touches the grid through `get_node_ids` and `send_and_receive` alone, so that
a proxy around the grid serves all of them.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from codedfedl.errors import InputError
from codedfedl.pacing.flower.mail import Mail, VirtualMail, puller
from codedfedl.pacing.flower.recorder import Recorder
from codedfedl.pacing.flower.replies import (
    STATISTICS,
    Model,
    Treatment,
    UnpaceableError,
    example_count,
    model_of,
    question,
    reported_work,
    stripped,
    treatment_of,
    update_length,
    weighed,
)
from codedfedl.pacing.pacer import Pacer
from codedfedl.pacing.rounds import NodeReply, PacingJournal, RoundPlan

__all__ = ["PacedGrid", "paced"]

KINDS = ("train", "evaluate")
_log = logging.getLogger("flwr")


def paced(
    grid: Grid,
    strategy: Any | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    late: Literal["count", "drop"] = "count",
    learn_only: bool = False,
    deadline: float | None = None,
    cap: float = 20.0,
    factors: bool | None = None,
    statistics: str = STATISTICS,
    virtual: bool = False,
) -> "PacedGrid":
    """Return a grid that paces the rounds of a Flower app.

    Parameters
    ----------
    strategy
        What aggregates the replies; a weighted mean if it is left out.
    out
        A folder for tables, a page and the journal of the run.
    resume
        Continue the run in `out`, if there is one.
    late
        Whether answers after the deadline count in a later round, added to its model, or never.
    learn_only
        Change nothing, and say what could be gained.
    deadline
        Seconds of every round, instead of a chosen deadline.
    cap
        The largest weight 1/π; where it binds, the model is biased, and the round says so.
    factors
        Whether updates are weighed by 1/π; by default what the strategy permits.
    statistics
        A regular expression for arrays that are no parameters: BatchNorm's statistics by default.
    virtual
        For simulated nodes: a round takes the seconds that clients claim in `timed`.
    """
    treatment = treatment_of(strategy)
    if factors is not None:
        treatment = Treatment(factors, treatment.resumes or factors, treatment.key)
    for name, value in (("deadline", deadline), ("cap", cap)):
        if value is not None and not 0 < value < inf:
            raise InputError(f"{name} is {value}: must be a number above 0")
    if late not in ("count", "drop"):
        raise InputError(f"late is {late!r}: must be 'count' or 'drop'")
    if resume and not treatment.resumes:
        raise InputError(f"resume is True, and {treatment.why}: start anew, in another out")
    pacer = Pacer(
        late=late if treatment.factors else "drop",
        cap=cap,
        deadline=deadline,
        factors=treatment.factors,
        learn_only=learn_only or treatment.waits,
    )
    recorder = Recorder(None if out is None else PacingJournal(out, resume=resume), treatment)
    mail = (VirtualMail if virtual else Mail)(puller(grid))
    return PacedGrid(grid, pacer, treatment, mail, recorder, statistics)


@dataclass(frozen=True, eq=False)
class _Sent:
    """A question on its way: to whom, in which round, and the model that went with it."""

    node: int
    kind: str
    asked: int  # the pacer's number of the round
    model: Model | None


class PacedGrid(Grid):
    """A grid around another one; `paced` makes it."""

    def __init__(
        self,
        grid: Grid,
        pacer: Pacer,
        treatment: Treatment,
        mail: Mail,
        recorder: Recorder,
        statistics: str = STATISTICS,
    ) -> None:
        self._grid, self._treatment, self._mail = grid, treatment, mail
        self._recorder, self._statistics = recorder, statistics
        evaluation = Pacer(late="ignore", factors=False, learn_only=pacer.learn_only)
        self.pacers = {"train": pacer, "evaluate": evaluation}
        self.unpaced = ""  # why, once it is
        self._sent: dict[str, _Sent] = {}
        self._failed: list[Message] = []
        self._calls = dict.fromkeys(KINDS, 0)
        self._noted: set[str] = set()
        recorder.restore(self.pacers)
        if not treatment.factors:
            how = "rounds wait for all" if treatment.waits else "deadlines and windows, no factors"
            self._note(f"{treatment.why or 'as asked'}: {how}")

    # What a grid does anyway.

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """Run information."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Create a message."""
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Get node ids."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Get nodes."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages as they are."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages as they are."""
        return self._grid.pull_messages(message_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def close(self) -> None:
        """Write the last state of tables and page; a process that ends does so by itself."""
        self._recorder.close()

    # A round.

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Play a paced round of training or evaluation; pass any other question on."""
        questions = list(messages)
        kind = questions[0].metadata.message_type.partition(".")[0] if questions else ""
        if kind not in KINDS:
            return self._grid.send_and_receive(questions, timeout=timeout)
        self._calls[kind] += 1
        nodes = {message.metadata.dst_node_id: message for message in questions}
        if len(nodes) < len(questions):
            self._go_unpaced("a node is asked twice in a round")
        if not self.unpaced:
            if kind == "train":
                self._recorder.check(questions[0], self._calls[kind])
            replayed = self._recorder.replay(kind, self._calls["train"], questions[0])
            if replayed is not None:
                return replayed
            return self._play(kind, nodes, inf if timeout is None else timeout)
        replies = self._grid.send_and_receive(questions, timeout=timeout)
        return [stripped(reply) for reply in replies]

    def _play(self, kind: str, nodes: Mapping[int, Message], timeout: float) -> list[Message]:
        pacer, mail = self.pacers[kind], self._mail
        self._take_waiting()
        online = set(self._grid.get_node_ids())
        for each in self.pacers.values():
            for node in [node for node in each.pending if node not in online]:
                each.lost(node)
            each.forget_lost(mail.now())
        busy = {node for name, p in self.pacers.items() if name != kind for node in p.pending}
        pacer.longest = timeout
        plan = pacer.begin(nodes, mail.now(), busy=() if pacer.learn_only else busy)
        self._failed.clear()
        model = model_of(next(iter(nodes.values()))) if kind == "train" else None
        self._forget(
            lambda sent: sent.node not in online or (pacer.late == "drop" and sent.kind == kind)
        )
        self._push(kind, plan, nodes, model)
        self._recorder.write_in_background()  # while everybody waits
        while pacer.waiting and (reply := mail.next(pacer.until)) is not None:
            self._take(*reply)
        self._take_waiting()
        return self._ended(kind, model)

    def _push(
        self, kind: str, plan: RoundPlan, nodes: Mapping[int, Message], model: Model | None
    ) -> None:
        """Send a round's questions."""
        pacer = self.pacers[kind]
        expires = pacer.late == "drop" and not self._mail.is_virtual
        ttl = plan.deadline if expires and plan.deadline < inf else None
        messages = [question(nodes[node], self._facts(pacer, plan, node), ttl) for node in plan.ask]
        identities: list[str | None] = list(self._grid.push_messages(messages)) if messages else []
        if len(identities) < len(messages):  # some engines leave out what they do not take
            taken, known = set(identities), [m.metadata.message_id for m in messages]
            identities = [each if each in taken else None for each in known]
        asked = dict(zip(plan.ask, identities, strict=True))
        for node in [node for node, identity in asked.items() if identity is None]:
            pacer.lost(node)
        number = pacer.rounds - 1
        self._sent |= {i: _Sent(node, kind, number, model) for node, i in asked.items() if i}
        self._mail.expect([identity for identity in identities if identity])

    def _forget(self, is_over: Callable[[_Sent], bool]) -> None:
        """Wait no longer for replies that will not come."""
        for identity in [identity for identity, sent in self._sent.items() if is_over(sent)]:
            del self._sent[identity]
            self._mail.forget(identity)

    @staticmethod
    def _facts(pacer: Pacer, plan: RoundPlan, node: int) -> dict[str, float]:
        if node not in plan.windows:
            return {}
        return {"window": plan.windows[node], "examples": pacer.expected_examples(node)}

    def _take_waiting(self) -> None:
        while (reply := self._mail.next(-inf)) is not None:
            self._take(*reply)

    def _take(self, identity: str, reply: Message | None, when: float) -> None:
        """Note a reply: it belongs to its question, whoever it says it is from."""
        sent = self._sent.pop(identity, None)
        if sent is None:
            return
        pacer, is_late = self.pacers[sent.kind], sent.asked < self.pacers[sent.kind].rounds - 1
        if reply is None or reply.has_error():
            pacer.lost(sent.node, asked=sent.asked)
            self._failed += [] if reply is None or is_late else [reply]
            return
        try:
            count = example_count(reply, self._treatment.key)
        except UnpaceableError as error:
            pacer.lost(sent.node, asked=sent.asked)
            self._failed += [] if is_late else [stripped(reply)]
            self._go_unpaced(f"node {sent.node} {error}")
            return
        share, seconds, wrong = reported_work(reply)
        if wrong:
            self._note(f"node {sent.node} reports {wrong}: its own times are not used")
        model = None if share is None else sent.model
        length = None if model is None else update_length(reply, model, self._statistics)
        answer = pacer.arrived(
            sent.node,
            when,
            examples=count,
            share=share,
            compute=seconds,
            length=length,
            asked=sent.asked,
            tag=(stripped(reply), sent.model),
        )
        if answer is not None and seconds is not None and answer.compute is None:
            self._note(
                f"node {sent.node} reports {seconds:g} seconds of computing, and its answer took "
                f"{answer.seconds:.3g}: its own times are not used"
            )

    def _ended(self, kind: str, model: Model | None) -> list[Message]:
        """Return a round's replies, with their factors, and write down what happened."""
        pacer = self.pacers[kind]
        played = pacer.end(self._mail.now())
        replies = [a.tag[0] for a in played.counted if not a.late]
        if kind == "train" and not self.unpaced:
            replies = self._weighed(played.counted, model)
        if not replies and not self._failed:
            self._note("nobody arrived, and nothing is returned")
        name = "round" if kind == "train" else "evaluation"
        _log.info("paced: %s %d: %s", name, self._calls[kind], played.sentence())
        if not self.unpaced:
            self._recorder.keep(kind, self._calls[kind], played, replies, self.pacers)
        return replies + self._failed

    def _weighed(self, counted: list[NodeReply], model: Model | None) -> list[Message]:
        """Weigh all replies, or none: then the app continues without pacing."""
        pacer, changed = self.pacers["train"], {}
        is_real = model is None or any(np.issubdtype(a.dtype, np.floating) for a in model.values())
        if not is_real and pacer.factors:
            pacer.factors = False
            self._note("the model has no floating-point numbers (masked sums?), so no factors")
        for k, answer in enumerate(counted):
            reply, asked = answer.tag
            if (answer.factor == 1 and not answer.late) or not pacer.factors:
                continue
            try:
                if model is None or asked is None:
                    raise UnpaceableError("was sent several records of arrays: send one")
                changed[k] = weighed(reply, model, asked, answer.factor, self._statistics)
            except UnpaceableError as error:
                self._go_unpaced(f"node {answer.node} {error}")
                return [a.tag[0] for a in counted if not a.late]
        for k, (name, arrays) in changed.items():
            counted[k].tag[0].content[name] = arrays
        return [answer.tag[0] for answer in counted]

    # What is said.

    def _note(self, sentence: str) -> None:
        """Say something once."""
        if sentence not in self._noted:
            self._noted.add(sentence)
            _log.warning("paced: %s", sentence)

    def _go_unpaced(self, reason: str) -> None:
        """Wait for all from now on, and change nothing: better unpaced than wrong."""
        if not self.unpaced:
            self.unpaced = reason
            for pacer in self.pacers.values():
                pacer.wait_for_all()
            self._note(f"pacing is off from now on, and rounds wait for all: {reason}")
